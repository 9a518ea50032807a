"""The row program: which norm, with which options. The one value that every floor hands to the next."""

from __future__ import annotations

from typing import NamedTuple

ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")
ROUNDINGS = ("once", "llama")


class Program(NamedTuple):
    """What is done to a row, apart from its tensors.

    h    = x [+ pre_bias] [+ residual]
    y    = activation((h - mu) * rstd [* (weight + weight_shift)] [+ bias])
    """

    center: bool  # LayerNorm takes the mean off, RMSNorm does not
    eps: float
    weight_shift: float = 0.0
    activation: str | None = None
    rounding: str = "once"

    @property
    def name(self) -> str:
        return "layer_norm" if self.center else "rms_norm"
