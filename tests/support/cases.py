"""One call of the library as a value, and what the library computes for it."""

from dataclasses import dataclass, field, make_dataclass
from typing import Any

import torch

import rownorm
from rownorm.program import COLUMNS, DEFAULT_EPS, DTYPES, OPTIONS, ROWS, Program
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
# residual_dtype, ...: None where there is none
_Rows = _described("_Rows", {f"{one}_dtype": None for one in ROWS if one != "x"})


@dataclass(frozen=True)
class Case(_Rows, _Columns, _Options):
    """One call of the library without the values of its tensors.

    Its other fields are keywords that follow from the description of the row program: ``residual_dtype``; ``weight``,
    ``bias`` and ``pre_bias``, whether there is one; and the options.
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
        around = {"weight": 1.0 - self.weight_shift}

        def parameter(present: bool, around: float):
            if not present:
                return None
            values = around + 0.3 * torch.randn(n_cols)
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
            **{name: parameter(getattr(self, name), around.get(name, 0.0)) for name in COLUMNS},
            "dy": rows(self.program.result_dtype(self.dtype)),
            "dh": rows(self.residual_dtype),
        }


def call(case: Case, tensors: dict) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The public function for a case: (y, h)."""
    name = "layer_norm" if case.center else "rms_norm"
    parameters = {name: tensors[name] for name in COLUMNS}
    if tensors["residual"] is None:
        return getattr(rownorm, name)(tensors["x"], **parameters, **case.options), None
    operation = getattr(rownorm, f"add_{name}")
    return operation(tensors["x"], tensors["residual"], **parameters, **case.options)


def outputs_and_gradients(function, tensors: dict, wanted=INPUTS) -> dict[str, torch.Tensor]:
    """y, [h,] and the gradients of the inputs that are both wanted and present, by name."""
    inputs = dict(tensors)
    leaves = [name for name in wanted if tensors[name] is not None]
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
