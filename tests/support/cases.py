"""One call of the library as a value, and what the library computes for it."""

from dataclasses import dataclass, field, make_dataclass
from typing import Any

import torch

import rownorm
from rownorm.program import (
    COLUMNS,
    DEFAULT_EPS,
    DTYPES,
    OPTIONS,
    PARAMETERS,
    ROWS,
    SAMPLES,
    WITH_RESIDUAL,
    Program,
)
from rownorm.program import INPUTS as _INPUTS
from support.data import make_rows

__all__ = ["DTYPES", "INPUTS", "Case", "call", "ours", "output_dtype", "outputs_and_gradients"]

INPUTS = tuple(_INPUTS)


def _described(name: str, defaults: dict[str, Any]) -> type:
    """A dataclass with a keyword for each of these."""
    fields = [(one, Any, field(default=value, kw_only=True)) for one, value in defaults.items()]
    return make_dataclass(name, fields, frozen=True)


# eps=None: the default of the operation
_Options = _described("_Options", {one: Program._field_defaults.get(one) for one in OPTIONS})
# weight, bias, ...: whether there is one
_Columns = _described("_Columns", {one: one == "weight" for one in COLUMNS})
# scale, shift: the extent of one, of EXTENTS; None where there is none
_Samples = _described("_Samples", dict.fromkeys(SAMPLES))
# residual_dtype, ...: None where there is none
_Rows = _described("_Rows", {f"{one}_dtype": None for one in ROWS if one != "x"})


# Shapes that broadcast to rows of a shape: the same for all rows, for those of a sample, for those at a place of every
# sample, or for each row its own.
EXTENTS = {
    "columns": lambda shape: shape[-1:],
    "samples": lambda shape: (*shape[:1], *(1 for _ in shape[1:-1]), shape[-1]),
    "places": lambda shape: shape[1:],
    "rows": lambda shape: shape,
}


@dataclass(frozen=True)
class Case(_Rows, _Columns, _Samples, _Options):
    """One call of the library without the values of its tensors.

    Its other fields are keywords that follow from the description of the row program: ``residual_dtype`` and
    ``gate_dtype``; ``weight``, ``bias`` and ``pre_bias``, whether there is one; ``scale``, ``shift`` and
    ``residual_gate``, of EXTENTS; and the options.
    """

    center: bool
    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] = (3, 70)
    data: str = "normal"
    parameter_dtype: torch.dtype | None = field(default=None, kw_only=True)  # None: that of x

    @property
    def program(self) -> Program:
        options = {name: getattr(self, name) for name in OPTIONS}
        if self.eps is None:
            options["eps"] = DEFAULT_EPS["layer_norm" if self.center else "rms_norm"]
        return Program(self.center, **options)

    @property
    def options(self) -> dict:
        return self.program.keywords()

    def tensors(self, device: str) -> dict[str, torch.Tensor | None]:
        """The inputs by name, and ``dy`` and ``dh``."""
        n_cols = self.shape[-1]
        around = {"weight": 1.0 - self.weight_shift, "scale": 1.0 - self.scale_shift}

        def parameter(name: str):
            extent = getattr(self, name)
            if not extent:
                return None
            shape = EXTENTS[extent](self.shape) if name in SAMPLES else (n_cols,)
            values = around.get(name, 0.0) + 0.3 * torch.randn(shape)
            return values.to(device, self.parameter_dtype or self.dtype)

        def rows(dtype, data: str = "normal"):
            return (
                None
                if dtype is None
                else make_rows(data, self.shape, dtype, self.program).to(device)
            )

        return {
            "x": rows(self.dtype, self.data),
            **{name: rows(getattr(self, f"{name}_dtype")) for name in ROWS if name != "x"},
            **{name: parameter(name) for name in PARAMETERS},
            "dy": rows(self.program.result_dtype(self.dtype)),
            "dh": rows(self.residual_dtype),
        }


def call(case: Case, tensors: dict) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The public function for a case: (y, h)."""
    name = "layer_norm" if case.center else "rms_norm"
    parameters = {one: tensors.get(one) for one in (*PARAMETERS, "gate")}
    if tensors["residual"] is None:
        parameters = {one: t for one, t in parameters.items() if one not in WITH_RESIDUAL}
        return getattr(rownorm, name)(tensors["x"], **parameters, **case.options), None
    operation = getattr(rownorm, f"add_{name}")
    return operation(tensors["x"], tensors["residual"], **parameters, **case.options)


def outputs_and_gradients(function, tensors: dict, wanted=INPUTS) -> dict[str, torch.Tensor]:
    """y, [h,] and the gradients of the inputs that are both wanted and present, by name."""
    inputs = dict(tensors)
    leaves = [name for name in wanted if tensors.get(name) is not None]
    for name in leaves:
        inputs[name] = tensors[name].detach().requires_grad_()
    y, h = function(inputs)
    is_h_used = h is not None and h.requires_grad  # not where only parameters are leaves
    outputs = [y, h] if is_h_used else [y]
    cotangents = [tensors["dy"], tensors["dh"]][: len(outputs)]
    results = {"y": y.detach()} if h is None else {"y": y.detach(), "h": h.detach()}
    gradients = torch.autograd.grad(outputs, [inputs[name] for name in leaves], cotangents)
    return results | {
        f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)
    }


def ours(case: Case, tensors: dict) -> dict[str, torch.Tensor]:
    return outputs_and_gradients(lambda inputs: call(case, inputs), tensors)


def output_dtype(name: str, tensors: dict) -> torch.dtype:
    """The dtype of an output, ``y`` or ``h``, or of a gradient, ``d<input>``."""
    return tensors[{"y": "dy", "h": "residual"}.get(name, name.removeprefix("d"))].dtype
