"""A ``Problem`` is everything about a call that a plan depends on. It is a key: equal problems get equal plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..program import COLUMNS, INPUTS, SAMPLES, Inputs, Program, named
from ..reference import BackwardInputs, ForwardOutputs, backward_inputs, compute_dtype
from .device import Device, device_of

Direction = Literal["forward", "backward"]
# Options for which a tuned table may have entries of its own. In backward, a pre_bias is one more column sum.
OPTIONS = ("activation", "pre_bias")


class Samples(NamedTuple):
    """Rows of one sample share scale, shift and residual_gate.

    A row belongs to the sample ``row // rows_per_sample % n_samples``.
    """

    rows_per_sample: int
    n_samples: int


@dataclass(frozen=True)
class Problem:
    """Rows to normalize (forward), or rows whose gradients are computed (backward)."""

    direction: Direction
    n_rows: int
    n_cols: int
    dtype: torch.dtype  # of x; in backward the wider one of dy and dx
    residual_dtype: torch.dtype | None  # None: no residual
    center: bool  # True for LayerNorm, False for RMSNorm
    n_column_sums: int  # backward: how many of the parameters' gradients are computed
    device: Device
    activation: str | None = None
    pre_bias: bool = False  # forward only; backward counts it in n_column_sums
    mixed: bool = False  # backward: some of dy, h and dx have 16-bit elements, others 32-bit ones
    batch_invariant: bool = False  # what a row's bits depend on must not depend on n_rows
    samples: Samples | None = None  # None: neither modulation nor residual_gate
    sample_bytes: int = 0  # of an element of scale, shift and residual_gate together
    n_sample_sums: int = 0  # backward: how many of the sums are over the rows of a sample only
    gate_dtype: torch.dtype | None = None  # None: no gate
    gate_first: bool = False
    rounds_each: bool = False  # rounding="each"
    residual_gate: bool = False  # then backward reads x beside h

    @property
    def computes_in_fp64(self) -> bool:
        """fp64 takes twice the registers of fp32."""
        return torch.float64 in (self.dtype, self.residual_dtype)

    @property
    def own_samples(self) -> bool:
        """Whether every row has its own scale, shift and residual_gate."""
        return self.samples is not None and self.samples.n_samples == self.n_rows

    @property
    def third_sum(self) -> bool:
        """Backward: dweight, dbias and dpre_bias together take more registers than a plain norm leaves."""
        return self.n_column_sums > 2

    @property
    def option(self) -> str:
        """The options beside a residual: "", "activation", "pre_bias" or "activation+pre_bias"."""
        more_sums = self.n_column_sums > 1 + self.center
        has = (self.activation is not None, self.pre_bias or more_sums)
        return "+".join(name for name, is_there in zip(OPTIONS, has, strict=True) if is_there)


def sample_shape(x_shape: Sequence[int], tensors: Sequence[Tensor | None]) -> tuple[int, ...]:
    """The one shape in which the kernels read the samples, such as scale and shift, of rows of this shape.

    They are broadcast to each other, and have the size of x in every dimension from the first to the last in which they
    are not broadcast to x: (4, 1, 5, n_cols) beside x of (4, 3, 5, n_cols) has to be expanded.
    """
    n_dims = len(x_shape)
    shapes = [(1,) * (n_dims - t.dim()) + tuple(t.shape) for t in tensors if t is not None]
    own = [
        i
        for i, size in enumerate(x_shape[:-1])
        if size != 1 and any(shape[i] == size for shape in shapes)
    ]
    first, end = (own[0], own[-1] + 1) if own else (0, 0)
    rows = (*(1,) * first, *x_shape[first:end], *(1,) * (n_dims - 1 - end))
    return *rows, x_shape[-1]


def sharing(x_shape: Sequence[int], tensors: Sequence[Tensor | None]) -> Samples | None:
    """How rows of this shape share samples of ``sample_shape``; None where there are none."""
    if all(t is None for t in tensors):
        return None
    shape = sample_shape(x_shape, tensors)
    own = [i for i, size in enumerate(shape[:-1]) if size != 1]
    rows_per_sample = math.prod(x_shape[own[-1] + 1 if own else 0 : -1])
    return Samples(rows_per_sample, math.prod(shape[:-1]))


def forward_problem(inputs: Inputs, program: Program, device: Device | None = None) -> Problem:
    """The problem of normalizing the rows of these tensors. device: if it is not that of x."""
    return Problem(
        direction="forward",
        dtype=inputs.x.dtype,
        residual_dtype=None if inputs.residual is None else inputs.residual.dtype,
        n_column_sums=0,
        pre_bias=inputs.pre_bias is not None,
        **_of_both(inputs.x, inputs, program, device),
    )


def backward_problem(
    inputs: BackwardInputs,
    program: Program,
    has_residual: bool,
    wanted: tuple[bool, ...],
    device: Device | None = None,
) -> Problem:
    """The problem of computing the wanted gradients of these rows.

    wanted: whether each of the ``Inputs`` gets one. device: if it is not that of h.
    """
    h, dy = inputs.h, inputs.dy
    sums = [name for name, want in zip(INPUTS, wanted, strict=True) if want]
    n_sample_sums = sum(name in SAMPLES for name in sums)
    dtypes = (dy.dtype, program.result_dtype(dy.dtype))  # of dy and dx
    return Problem(
        direction="backward",
        dtype=max(dtypes, key=lambda dtype: dtype.itemsize),
        residual_dtype=h.dtype if has_residual else None,
        n_column_sums=sum(name in COLUMNS for name in sums) + n_sample_sums,
        mixed={dtype.itemsize for dtype in (*dtypes, h.dtype)} == {2, 4},
        n_sample_sums=n_sample_sums,
        **_of_both(h, inputs, program, device),
    )


def _of_both(
    rows: Tensor, inputs: Inputs | BackwardInputs, program: Program, device: Device | None
) -> dict[str, Any]:
    """What the problems of both directions say in the same way."""
    n_cols = rows.shape[-1]
    samples = named(inputs, SAMPLES)
    return {
        "n_rows": rows.numel() // n_cols,
        "n_cols": n_cols,
        "center": program.center,
        "device": device or device_of(rows.get_device()),
        "activation": program.activation,
        "batch_invariant": program.batch_invariant,
        "samples": sharing(rows.shape, samples),
        "sample_bytes": sum(t.dtype.itemsize for t in samples if t is not None),
        "gate_dtype": None if inputs.gate is None else inputs.gate.dtype,
        "gate_first": program.gate_first,
        "rounds_each": program.rounding == "each",
        "residual_gate": inputs.residual_gate is not None,
    }


def without_values(inputs: Inputs, program: Program) -> BackwardInputs:
    """Tensors like those that backward reads after this forward pass."""
    x, residual = inputs.x, inputs.residual
    per_row = torch.empty(x.shape[:-1], dtype=compute_dtype(x, residual), device="meta")
    outputs = ForwardOutputs(
        y=torch.empty_like(x, dtype=program.result_dtype(x.dtype), device="meta"),
        h=residual,
        mu=per_row if program.center else None,
        rstd=per_row,
    )
    dh = None if residual is None else torch.empty_like(residual, device="meta")
    return backward_inputs(outputs.y, dh, inputs, outputs)
