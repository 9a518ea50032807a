"""The row program: which norm, with which options. Every layer passes this one value to the next."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")
ROUNDINGS = ("once", "llama")
DEFAULT_EPS = {"layer_norm": 1e-5, "rms_norm": 1e-6}


class Program(NamedTuple):
    """What is computed for a row, apart from the tensors.

    h    = x [+ pre_bias] [+ residual]
    y    = activation((h - mu) * rstd [* (weight + weight_shift)] [+ bias])

    Every field after ``center`` is a keyword of the public functions. Types and defaults of the registered operators
    are derived from the fields (``ops.schema``).
    """

    center: bool  # LayerNorm subtracts the mean, RMSNorm does not
    eps: float
    weight_shift: float = 0.0
    activation: str | None = None
    rounding: str = "once"
    # Of the rows that are computed: y in forward, dx in backward. None: that of the rows that are read, x or dy.
    out_dtype: torch.dtype | None = None

    @property
    def name(self) -> str:
        """The public function without a residual."""
        return "layer_norm" if self.center else "rms_norm"

    def result_dtype(self, rows: torch.dtype) -> torch.dtype:
        """The dtype of y, given that of x; in backward that of dx, given that of dy."""
        return rows if self.out_dtype is None else self.out_dtype

    def for_backward(self, x_dtype: torch.dtype) -> Program:
        """The program of the backward pass, whose result dx has the dtype of x."""
        return self if self.out_dtype is None else self._replace(out_dtype=x_dtype)

    def keywords(self) -> dict[str, Any]:
        """The options as keywords of the public function."""
        options = self._asdict()
        del options["center"]
        return options


def has_numbers(options: tuple[Any, ...]) -> bool:
    """Whether eps and weight_shift are Python numbers, as ``ops.checks`` demands. True equals 1, but it is no number.

    options: a Program, or its fields in a plain tuple.
    """
    eps, weight_shift = options[1:3]
    return (
        isinstance(eps, (int, float))
        and isinstance(weight_shift, (int, float))
        and type(eps) is not bool
        and type(weight_shift) is not bool
    )
