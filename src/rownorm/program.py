"""The row program: which norm, with which options. Every layer passes this one value to the next."""

from __future__ import annotations

from typing import Any, NamedTuple

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

    @property
    def name(self) -> str:
        """The public function without a residual."""
        return "layer_norm" if self.center else "rms_norm"

    def keywords(self) -> dict[str, Any]:
        """The options as keywords of the public function."""
        options = self._asdict()
        del options["center"]
        return options
