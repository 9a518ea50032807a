"""What PyTorch computes for a case."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from rownorm.program import INPUTS
from rownorm.reference import compute_dtype
from support.cases import Case, output_dtype, outputs_and_gradients
from support.rounding import rounded


def torch_own(case: Case, tensors: dict, *, h_rounded: bool = True) -> dict[str, torch.Tensor]:
    """Outputs and gradients of a case computed by PyTorch.

    A plain norm in one dtype is ``F.layer_norm`` or ``F.rms_norm``. Everything else is composed in
    fp32 (fp64 for fp64) and rounded where the row program rounds, which is stricter than composing
    it in the dtype of x. With ``h_rounded`` the norm reads the rounded residual stream, as in eager
    PyTorch.
    """
    plain = Case(case.center, case.dtype, case.shape, weight=case.weight, bias=case.bias)
    torch_has_it = case.center or not case.bias
    if torch_has_it and replace(case, data="normal", eps=None) == plain:
        return outputs_and_gradients(lambda inputs: (_torch_norm(case, inputs), None), tensors)
    compute = compute_dtype(tensors["x"], tensors["residual"])
    wide = {name: None if t is None else t.to(compute) for name, t in tensors.items()}

    def composition(inputs: dict):
        h = inputs["x"]
        for name in reversed([name for name, one in INPUTS.items() if one.in_h and name != "x"]):
            h = h if inputs[name] is None else h + inputs[name]
        stream = None if inputs["residual"] is None else h
        if stream is not None and h_rounded:
            h = _rounded_straight_through(h, case.residual_dtype)
        weight = inputs["weight"]
        if case.rounding == "llama":
            z = _torch_norm(case, {"x": h, "weight": None, "bias": None})
            z = _rounded_straight_through(z, case.dtype)
            z = z if weight is None else z * (weight + case.weight_shift)
        else:
            scale = None if weight is None else weight + case.weight_shift
            z = _torch_norm(case, {"x": h, "weight": scale, "bias": None})
        z = z if inputs["bias"] is None else z + inputs["bias"]
        z = z if inputs["scale"] is None else z * (inputs["scale"] + case.scale_shift)
        z = z if inputs["shift"] is None else z + inputs["shift"]
        return torch_activation(case.activation, z), stream

    results = outputs_and_gradients(composition, wide)
    return {name: rounded(value, output_dtype(name, tensors)) for name, value in results.items()}


def _torch_norm(case: Case, inputs: dict):
    x, shape, eps = inputs["x"], (case.shape[-1],), case.program.eps
    if case.center:
        return F.layer_norm(x, shape, inputs["weight"], inputs["bias"], eps)
    return F.rms_norm(x, shape, inputs["weight"], eps)


def torch_activation(activation: str | None, z: torch.Tensor) -> torch.Tensor:
    functions = {
        None: lambda z: z,
        "relu": F.relu,
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    }
    return functions[activation](z)


def _rounded_straight_through(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return t + (rounded(t.detach(), dtype).to(t.dtype) - t.detach())
