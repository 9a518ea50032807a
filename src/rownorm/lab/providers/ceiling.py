"""The ceiling: PyTorch's elementwise kernel on as many bytes as the case must move. What memory gives in practice."""

from __future__ import annotations

import torch

from ..cases import Case
from ..data import Tensors
from . import EVERY_OPTION, Call, provider


@provider(
    "ceiling",
    about="PyTorch's elementwise kernel moving the same bytes: the speed of memory in practice",
    kind="ceiling",
    options=EVERY_OPTION,
)
def ceiling(case: Case, t: Tensors) -> Call:
    x, dtype = t.x.detach(), t.x.dtype
    if x.device.type == "cpu" and dtype.itemsize == 2:
        dtype = torch.float32  # to a CPU, arithmetic of 16 bits is slower than memory
    elif case.direction == "forward" and not case.adds:
        return lambda: torch.neg(x)
    elif case.direction == "backward" and t.dy is not None and not case.adds:
        dy = t.dy
        return lambda: torch.add(x, dy)
    # One or two tensors read and one written, together the bytes of the case.
    read = 1 if case.direction == "forward" and not case.adds else 2
    n = case.compulsory_bytes // ((read + 1) * dtype.itemsize)
    a, *b = (torch.zeros(n, dtype=dtype, device=x.device) for _ in range(read))
    return lambda: torch.add(a, *b) if b else torch.neg(a)
