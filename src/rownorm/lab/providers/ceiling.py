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
    x = t.x.detach()
    if case.direction == "forward" and not case.adds:
        return lambda: torch.neg(x)
    if case.direction == "backward" and t.dy is not None and not case.adds:
        dy = t.dy
        return lambda: torch.add(x, dy)
    # Two tensors read and one written, together the bytes of the case.
    n = case.compulsory_bytes // (3 * x.element_size())
    a, b = (
        torch.zeros(n, dtype=x.dtype, device=x.device),
        torch.zeros(n, dtype=x.dtype, device=x.device),
    )
    return lambda: torch.add(a, b)
