"""The ceiling: a PyTorch elementwise kernel that moves as many bytes as the case. It shows the practical bandwidth."""

from __future__ import annotations

import torch

from ..data.case import Case
from . import EVERY_OPTION, Call, provider
from .data import Tensors


@provider(
    "ceiling",
    about="PyTorch's elementwise kernel moving the same bytes: the practical memory bandwidth",
    kind="ceiling",
    options=(*EVERY_OPTION, "no_h"),
)
def ceiling(case: Case, t: Tensors) -> Call:
    x, dtype = t.x.detach(), t.x.dtype
    has_gate = case.gate_activation is not None
    reads_one = case.direction == "forward" and not (case.adds or has_gate)
    has_more = case.sample_rows > 0 or has_gate
    if x.device.type == "cpu" and dtype.itemsize == 2:
        dtype = torch.float32  # on a CPU, 16-bit arithmetic is slower than memory
    elif reads_one and not has_more:
        return lambda: torch.neg(x)
    elif case.direction == "backward" and t.dy is not None and not case.adds and not has_more:
        dy = t.dy
        return lambda: torch.add(x, dy)
    # One or two tensors are read and one is written; together they have the bytes of the case.
    n = case.compulsory_bytes // ((2 if reads_one else 3) * dtype.itemsize)
    a = torch.zeros(n, dtype=dtype, device=x.device)
    if reads_one:
        return lambda: torch.neg(a)
    b = torch.zeros_like(a)
    return lambda: torch.add(a, b)
