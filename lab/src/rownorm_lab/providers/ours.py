"""rownorm itself: its kernels on a GPU, its CPU path on a CPU."""

from __future__ import annotations

import rownorm
from rownorm.inside import INPUTS

from ..data.case import Case
from ..data.records import INVARIANT
from . import EVERY_OPTION, Call, by_autograd, provider
from .data import Tensors, program_of


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
    keywords = {
        name: tensor
        for name, tensor in t.inputs._asdict().items()
        if tensor is not None and INPUTS[name].is_keyword
    }
    if not keywords and case.activation is None:
        # As short as the calls of PyTorch's own operators, so that host times are comparable.
        x, residual, weight, bias, eps = t.x, t.residual, t.weight, t.bias, case.eps
        if residual is None:
            return lambda: function(x, weight, bias, eps=eps)
        return lambda: function(x, residual, weight, bias, eps=eps)
    rows = (t.x,) if t.residual is None else (t.x, t.residual)
    program = program_of(case)
    # Those that a user would write: each keyword costs host time.
    options = {
        name: value
        for name, value in program.keywords().items()
        if value != program._field_defaults.get(name)
    } | keywords
    inputs = (*rows, t.weight, t.bias)
    return lambda: function(*inputs, **options)
