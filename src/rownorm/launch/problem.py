"""A ``Problem`` is everything about a call that a plan depends on. It is a key: equal problems get equal plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..program import ROWS, Program
from .device import Device, device_of

Direction = Literal["forward", "backward"]
# Options for which a tuned table may have entries of its own. In backward, a pre_bias is one more column sum.
OPTIONS = ("activation", "pre_bias")


@dataclass(frozen=True)
class Problem:
    """Rows to normalize (forward), or rows whose gradients are computed (backward)."""

    direction: Direction
    n_rows: int
    n_cols: int
    dtype: torch.dtype  # of x; in backward the wider one of dy and dx
    residual_dtype: torch.dtype | None  # None: no residual
    center: bool  # True for LayerNorm, False for RMSNorm
    n_column_sums: int  # backward: how many of dweight, dbias and dpre_bias are computed
    device: Device
    activation: str | None = None
    pre_bias: bool = False  # forward only; backward counts it in n_column_sums
    mixed: bool = False  # backward: some of dy, h and dx have 16-bit elements, others 32-bit ones
    batch_invariant: bool = False  # what a row's bits depend on must not depend on n_rows

    @property
    def computes_in_fp64(self) -> bool:
        """fp64 takes twice the registers of fp32."""
        return torch.float64 in (self.dtype, self.residual_dtype)

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


def forward_problem(
    x: Tensor, residual: Tensor | None, pre_bias: Tensor | None, program: Program
) -> Problem:
    """The problem of normalizing the rows of these tensors."""
    n_cols = x.shape[-1]
    return Problem(
        direction="forward",
        n_rows=x.numel() // n_cols,
        n_cols=n_cols,
        dtype=x.dtype,
        residual_dtype=None if residual is None else residual.dtype,
        center=program.center,
        n_column_sums=0,
        device=device_of(x.get_device()),
        activation=program.activation,
        pre_bias=pre_bias is not None,
        batch_invariant=program.batch_invariant,
    )


def backward_problem(
    h: Tensor, dy: Tensor, has_residual: bool, program: Program, wanted: tuple[bool, ...]
) -> Problem:
    """The problem of computing the wanted gradients of these rows.

    wanted: whether each of the ``Inputs`` gets one.
    """
    n_cols = h.shape[-1]
    dtypes = (dy.dtype, program.result_dtype(dy.dtype))  # of dy and dx
    return Problem(
        direction="backward",
        n_rows=h.numel() // n_cols,
        n_cols=n_cols,
        dtype=max(dtypes, key=lambda dtype: dtype.itemsize),
        residual_dtype=h.dtype if has_residual else None,
        center=program.center,
        n_column_sums=sum(wanted[len(ROWS) :]),
        device=device_of(h.get_device()),
        activation=program.activation,
        mixed={dtype.itemsize for dtype in (*dtypes, h.dtype)} == {2, 4},
        batch_invariant=program.batch_invariant,
    )
