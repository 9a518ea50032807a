"""The form of a norm module: which row program reproduces it, for each pair of dtypes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..program import GateActivation

# The dtypes of x and of the weight; the second is None where there are no parameters.
DtypePair = tuple[torch.dtype, torch.dtype | None]

HALVES = (torch.bfloat16, torch.float16)

SHORT_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}


class Structure(NamedTuple):
    """What does not depend on dtypes."""

    center: bool
    weight: str | None  # the attribute of the module that multiplies, or None
    bias: str | None  # the attribute that is added, or None
    weight_shift: float
    eps: float = 0.0
    is_gated: bool = False  # whether forward takes a gate beside the rows
    gate_activation: GateActivation | None = None
    gate_first: bool = False
    group_cols: int | None = None

    @property
    def norm(self) -> str:
        """The public function that computes it."""
        return "layer_norm" if self.center else "rms_norm"

    @property
    def has_vectors(self) -> bool:
        """Whether there is a weight or a bias."""
        return self.weight is not None or self.bias is not None

    def pair(self, dtype: torch.dtype) -> DtypePair:
        """The pair of dtypes where everything has one."""
        return (dtype, dtype if self.has_vectors else None)


class Form(NamedTuple):
    """The row programs that were proved to reproduce a module.

    A pair of dtypes without an entry in ``keywords`` was not proved: the module's own forward is called for it.
    """

    structure: Structure
    argument: str  # the name of forward's argument
    gate_argument: str | None  # that of a gate, if forward takes one
    # The columns, if only this width was proved; None if the parameters fix it or every width is right.
    width: int | None
    own: DtypePair  # that of the model
    keywords: dict[DtypePair, dict[str, Any]]  # of the public function
    out_dtype: torch.dtype | None = None  # of every result, if the caller of patch asked for one

    def with_out_dtype(self, out_dtype: torch.dtype | None) -> Form:
        """The same form with results in ``out_dtype``. Rows of fp64 keep their dtype."""
        if out_dtype is None:
            return self
        keywords = {
            pair: options if pair[0] == torch.float64 else options | {"out_dtype": out_dtype}
            for pair, options in self.keywords.items()
        }
        return self._replace(keywords=keywords, out_dtype=out_dtype)

    def words(self) -> str:
        """The form in words, for the dtypes that the module has."""
        structure, out_dtype = self.structure, self.keywords[self.own]["out_dtype"]
        weight, bias, rounding = structure.weight, structure.bias, self._rounding()
        order = "first" if structure.gate_first else "last"
        parts = {
            structure.norm: True,
            f"eps={structure.eps:g}": True,
            f"weight_shift={structure.weight_shift:g}": structure.weight_shift,
            "no weight": weight is None,
            "no bias": structure.center and weight is not None and bias is None,
            "bias": bias is not None and not structure.center,
            f"gate {order}, gate_activation={structure.gate_activation!r}": structure.is_gated,
            f"group_cols={structure.group_cols}": structure.group_cols is not None,
            f'rounding="{rounding}"': rounding,
            f"out_dtype={SHORT_NAMES[out_dtype]}": out_dtype != self.own[0],
        }
        return ", ".join(part for part, is_said in parts.items() if is_said)

    def _rounding(self) -> str:
        """``llama`` if 16-bit rows are rounded before the weight; empty for the default."""
        halves = (options for pair, options in self.keywords.items() if pair[0] in HALVES)
        return "llama" if any(options["rounding"] == "llama" for options in halves) else ""
