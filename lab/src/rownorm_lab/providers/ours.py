"""rownorm itself: its kernels on a GPU, its CPU path on a CPU."""

from __future__ import annotations

from typing import Any

import rownorm

from ..data.case import Case
from ..data.records import INVARIANT
from . import EVERY_OPTION, Call, by_autograd, provider
from .data import Tensors


@provider("rownorm", about="this library", kind="ours", options=EVERY_OPTION)
def ours(case: Case, t: Tensors) -> Call:
    return by_autograd(case, t, _forward(case, t))


@provider(
    INVARIANT,
    about="this library in the mode rownorm.batch_invariant, which every call enters",
    kind="ours",
    options=EVERY_OPTION,
    on_request=True,
)
def invariant(case: Case, t: Tensors) -> Call:
    return by_autograd(case, t, rownorm.batch_invariant()(_forward(case, t)))


def _forward(case: Case, t: Tensors) -> Call:
    function = getattr(rownorm, case.operation)
    if t.residual is None and not case.pre_bias and case.activation is None:
        # As short as the call of PyTorch's own operator, so that host times are comparable.
        x, weight, bias, eps = t.x, t.weight, t.bias, case.eps
        return lambda: function(x, weight, bias, eps=eps)
    rows = (t.x,) if t.residual is None else (t.x, t.residual)
    options: dict[str, Any] = {"eps": case.eps}
    if case.pre_bias:
        options["pre_bias"] = t.pre_bias
    if case.activation is not None:
        options["activation"] = case.activation
    inputs = (*rows, t.weight, t.bias)
    return lambda: function(*inputs, **options)
