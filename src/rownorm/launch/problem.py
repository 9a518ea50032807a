"""A ``Problem`` is everything about a call that a plan depends on. It is a key: equal problems get equal plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from .device import Device

Direction = Literal["forward", "backward"]
# Options for which a tuned table may have rows of its own. In backward, a pre_bias is one more column sum.
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
