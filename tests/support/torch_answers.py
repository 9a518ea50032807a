"""What PyTorch computes for a case."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from rownorm.reference import compute_dtype
from support.cases import Case, output_dtype, outputs_and_gradients


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
        each = case.dtype if case.rounding == "each" else None
        h = inputs["x"]
        h = h if inputs["pre_bias"] is None else _step(h + inputs["pre_bias"], each)
        h = h if inputs["residual_gate"] is None else _step(h * inputs["residual_gate"], each)
        if inputs["residual"] is not None:
            h = _step(h + inputs["residual"], each and case.residual_dtype)
        stream = None if inputs["residual"] is None else h
        if stream is not None and h_rounded:
            h = _rounded_straight_through(h, case.residual_dtype)
        gate = inputs["gate"]
        gate = None if gate is None else _step(torch_gate(case.gate_activation, gate), each)
        if gate is not None and case.gate_first:
            h = _step(h * gate, each)
        weight = inputs["weight"]
        if case.rounding == "llama":
            z = _torch_norm(case, {"x": h, "weight": None, "bias": None})
            z = _rounded_straight_through(z, case.dtype)
            z = z if weight is None else z * (weight + case.weight_shift)
        else:
            scale = None if weight is None else weight + case.weight_shift
            z = _torch_norm(case, {"x": h, "weight": scale, "bias": None})
        z = _step(z if inputs["bias"] is None else z + inputs["bias"], each)
        if inputs["scale"] is not None:
            z = _step(z * _step(inputs["scale"] + case.scale_shift, each), each)
        z = z if inputs["shift"] is None else _step(z + inputs["shift"], each)
        y = torch_activation(case.activation, z)
        if gate is None or case.gate_first:
            return y, stream
        parameters = (tensors[name] for name in ("weight", "bias", "scale", "shift"))
        one_dtype = all(t is None or t.dtype == case.dtype for t in parameters)
        rounds = case.rounding == "each" or (case.rounding == "llama" and one_dtype)
        return _step(y, case.dtype if rounds else None) * gate, stream

    results = outputs_and_gradients(composition, wide)
    return {name: value.to(output_dtype(name, tensors)) for name, value in results.items()}


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


def torch_gate(activation: str | None, gate: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(gate) if activation == "sigmoid" else torch_activation(activation, gate)


def _step(t: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """The result of a step: rounded to a dtype, unless that is None."""
    return t if dtype is None else _rounded_straight_through(t, dtype)


def _rounded_straight_through(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return t + (t.detach().to(dtype).to(t.dtype) - t.detach())
