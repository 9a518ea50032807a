"""What Inductor, the default backend of torch.compile, does with the operators.

Up to ``MAX_COLS`` columns it gets PyTorch's own operators instead of ours. It fuses them with their neighbours in the
graph, and its kernels cost the host less than an operator that a compiled graph calls: experiment HST-06 in
docs/experiments/host.md. Wider rows keep rownorm's kernels, whose advantage is larger than that cost. Other backends
always see the operators. AOTInductor never does: ``export``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..program import Inputs, Program
from ..reference import ForwardOutputs

MAX_COLS = 4096
log = logging.getLogger(__name__)
# By operator: a function with its signature. It returns NotImplemented where the operator is to stay.
decompositions: dict[Any, Callable[..., Any]] = {}


def is_composed(rows: Tensor, program: Program) -> bool:
    """Whether these rows are computed by PyTorch's operators. Inductor may leave out a rounding in between."""
    # The options that ``forward`` has. A program with any other one stays an operator.
    is_known = program.has_only(
        *("weight_shift", "scale_shift", "activation", "gate_activation", "gate_first"),
        "out_dtype",
    )
    return is_known and rows.shape[-1] <= MAX_COLS


def is_forward_composed(inputs: Inputs, program: Program) -> bool:
    """The same for forward, whose tensors have to be known, too; ``reference.backward`` knows them all."""
    is_known = inputs.has_only(
        *("x", "residual", "pre_bias", "weight", "bias", "scale", "shift", "residual_gate", "gate")
    )
    return is_known and is_composed(inputs.x, program)


def forward(inputs: Inputs, program: Program) -> ForwardOutputs:
    """As ``reference.forward``, without its corrections of rounding errors: as accurate as PyTorch's norms."""
    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    stored, h = _prologue(x, inputs.residual, inputs.pre_bias, inputs.residual_gate, program)
    first, last = reference.gate_factors(inputs.gate, program, h.dtype)
    h = reference.times(h, first)
    mu, rstd = _moments(h, program)
    z = reference.affine((h if mu is None else h - mu) * rstd, weight, bias, program)
    z = reference.modulate(z, inputs.scale, inputs.shift, program)
    y = reference.times(reference.activate(z, program.activation), last)
    return reference.forward_outputs(y.to(program.result_dtype(x.dtype)), stored, mu, rstd)


def _prologue(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    residual_gate: Tensor | None,
    program: Program,
) -> tuple[Tensor | None, Tensor]:
    """(h as it is stored, or None without a residual; h in the compute dtype).

    The sum is one addition with PyTorch's promotion. With explicit conversions the next addition would share that of
    this h, and Inductor would keep the wider copy for backward: experiment HST-07 in docs/experiments/host.md.
    """
    is_plain_sum = residual is not None and pre_bias is None and residual_gate is None
    h = x if is_plain_sum else reference.prologue(x, None, pre_bias, residual_gate)
    if residual is None:
        return None, h
    compute = reference.compute_dtype(x, residual)
    stored = (h + residual).to(residual.dtype)
    if reference.rounding_changes_statistics(stored.dtype, compute, program):
        return stored, rounded(stored).to(compute)
    return stored, stored.to(compute)


def rounded(h: Tensor) -> Tensor:
    """``h``, whose rounding Inductor would leave out where it fuses: backward needs the statistics of the stored h.

    The operation on its bits takes the rounded number. Without one, Inductor drops the two views.
    """
    bits = h.view(torch.int16 if h.dtype.itemsize == 2 else torch.int32)
    return (bits & -1).view(h.dtype)


def _moments(h: Tensor, program: Program) -> tuple[Tensor | None, Tensor]:
    """(mu, rstd), (..., 1)."""
    if program.center:
        variance, mu = torch.var_mean(h, -1, correction=0, keepdim=True)
    else:
        variance, mu = h.square().mean(-1, keepdim=True), None
    return mu, torch.rsqrt(variance + program.eps)


def register_while_compiling() -> None:
    """Hand ``decompositions`` to Inductor, the first time that an operator is traced for torch.compile.

    The fake implementations call it: they are traced before Inductor selects its decompositions.
    """
    context = getattr(torch._guards, "TracingContext", None)
    if context is not None and context.try_get() is not None:
        _register()


@functools.cache
def _register() -> None:
    # Imported here because Inductor is large. Where a version of PyTorch lacks one of its names, the operators stay.
    from torch._inductor import decomposition, lowering

    try:
        table, make_fallback = decomposition.decompositions, lowering.make_fallback
        for operator in decompositions:
            # For the rows that stay: Inductor refuses an operator that has a decomposition and no way to be called.
            make_fallback(operator, override_decomp=True)
        decomposition.fast_random_decomps.cache_clear()  # a copy of the table
    except (AttributeError, TypeError) as error:
        log.debug("Inductor calls the operators: %s", error)
    else:
        table.update(decompositions)
