"""One call of the library as a value, and what the library computes for it."""

from dataclasses import dataclass

import torch

import rownorm
from rownorm.program import Program
from support.data import make_rows

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

INPUTS = ("x", "residual", "pre_bias", "weight", "bias")


@dataclass(frozen=True)
class Case:
    """One call of the library without the values of its tensors."""

    center: bool
    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] = (3, 70)
    data: str = "normal"
    residual_dtype: torch.dtype | None = None
    pre_bias: bool = False
    weight: bool = True
    bias: bool = False
    parameter_dtype: torch.dtype | None = None  # None: the dtype of x
    activation: str | None = None
    weight_shift: float = 0.0
    rounding: str = "once"
    eps: float | None = None  # None: the default of the operation
    out_dtype: torch.dtype | None = None  # of y; None: the dtype of x

    @property
    def program(self) -> Program:
        eps = self.eps if self.eps is not None else (1e-5 if self.center else 1e-6)
        return Program(
            self.center, eps, self.weight_shift, self.activation, self.rounding, self.out_dtype
        )

    @property
    def options(self) -> dict:
        options = self.program._asdict()
        del options["center"]
        return options

    def tensors(self, device: str) -> dict[str, torch.Tensor | None]:
        """The inputs by name, and ``dy`` and ``dh``."""
        n_cols = self.shape[-1]

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
            "residual": rows(self.residual_dtype),
            "pre_bias": parameter(self.pre_bias, 0.0),
            "weight": parameter(self.weight, 1.0 - self.weight_shift),
            "bias": parameter(self.bias, 0.0),
            "dy": rows(self.program.result_dtype(self.dtype)),
            "dh": rows(self.residual_dtype),
        }


def call(case: Case, tensors: dict) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The public function for a case: (y, h)."""
    name = "layer_norm" if case.center else "rms_norm"
    parameters = {n: tensors[n] for n in ("weight", "bias", "pre_bias")}
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
