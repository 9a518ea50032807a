"""Eager PyTorch: one operator after the other."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rownorm.inside import Inputs, Program

from ..data.case import Case
from . import EVERY_OPTION, Call, by_autograd, provider
from .data import Tensors, program_of


@provider(
    "torch",
    about="eager PyTorch, one operator after the other",
    options=EVERY_OPTION,
    package="torch",
)
def torch_eager(case: Case, t: Tensors) -> Call:
    program, inputs = program_of(case), t.inputs
    x, residual, weight, bias = t.x, t.residual, t.weight, t.bias
    is_plain = inputs.has_only("x", "residual", "weight", "bias") and case.activation is None
    if is_plain and (case.centers or bias is None):
        # PyTorch has one operator for the norm; nothing else may add host time.
        shape, eps = x.shape[-1:], case.eps
        if residual is not None and residual.dtype == x.dtype:
            return by_autograd(case, t, lambda: _norm_of_sum(program, x, residual, weight, bias))
        if residual is None and case.centers:
            return by_autograd(case, t, lambda: F.layer_norm(x, shape, weight, bias, eps))
        if residual is None:
            return by_autograd(case, t, lambda: F.rms_norm(x, shape, weight, eps))
    return by_autograd(case, t, lambda: composition(program, inputs))


def _norm_of_sum(
    program: Program, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(y, h) in two operators."""
    h = x + residual
    shape, eps = x.shape[-1:], program.eps
    if program.center:
        return F.layer_norm(h, shape, weight, bias, eps), h
    return F.rms_norm(h, shape, weight, eps), h


def composition(program: Program, t: Inputs) -> Tensor | tuple[Tensor, Tensor]:
    """The case in PyTorch's own operators, as a model would write it.

    The norm reads h as stored. If x and the residual differ in dtype, the norm runs in the wider one.
    """
    h = t.x if t.pre_bias is None else t.x + t.pre_bias
    if t.residual_gate is not None:
        h = h * t.residual_gate
    if t.residual is not None:
        h = h + t.residual
    gate = None if t.gate is None else _gated(t.gate, program.gate_activation)
    u = h * gate if gate is not None and program.gate_first else h
    weight = None if t.weight is None else t.weight.to(h.dtype)
    bias = None if t.bias is None else t.bias.to(h.dtype)
    if program.center:
        z = F.layer_norm(u, u.shape[-1:], weight, bias, program.eps)
    else:
        z = F.rms_norm(u, u.shape[-1:], weight, program.eps)
        z = z if bias is None else z + bias
    if t.scale is not None and t.shift is not None:
        z = z * (program.scale_shift + t.scale) + t.shift
    y = _activated(z, program.activation)
    y = (y if gate is None or program.gate_first else y * gate).to(t.x.dtype)
    return y if t.residual is None else (y, h.to(t.residual.dtype))


def _gated(gate: Tensor, activation: str | None) -> Tensor:
    return gate.sigmoid() if activation == "sigmoid" else _activated(gate, activation)


def _activated(z: Tensor, activation: str | None) -> Tensor:
    match activation:
        case None:
            return z
        case "gelu_tanh":
            return F.gelu(z, approximate="tanh")
        case _:
            return getattr(F, activation)(z)
