"""The row program in plain PyTorch: used without a GPU, for second derivatives, and as the oracle with fp64 input.

Every function computes in fp32, or in fp64 where a row is fp64, and rounds once, at the end. All operations are
differentiable, so autograd, forward mode and ``torch.func`` can differentiate through them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .program import ROWS_OF_H, SAVED, Inputs, Program


class ForwardOutputs(NamedTuple):
    """The results of forward. The statistics are those that backward needs: see ``stored_h_moments``."""

    y: Tensor
    h: Tensor | None  # None without a residual
    mu: Tensor | None  # None for RMSNorm
    rstd: Tensor


class BackwardInputs(NamedTuple):
    """The tensors that backward reads. Without a residual ``h`` is x, and backward adds ``pre_bias`` to it again."""

    dy: Tensor
    dh: Tensor | None  # gradient of the returned h
    h: Tensor
    pre_bias: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    scale: Tensor | None
    shift: Tensor | None
    residual_gate: Tensor | None
    gate: Tensor | None
    x: Tensor | None  # None without a residual_gate
    mu: Tensor | None
    rstd: Tensor


def backward_inputs(
    dy: Tensor, dh: Tensor | None, inputs: Inputs, outputs: ForwardOutputs
) -> BackwardInputs:
    """What backward reads after this forward pass."""
    return BackwardInputs._make((dy, dh, *to_save(inputs, outputs)))


def to_save(inputs: Inputs, outputs: ForwardOutputs) -> tuple[Tensor | None, ...]:
    """The tensors that backward needs of a forward pass, in the order of ``SAVED``."""
    results = {
        "h": inputs.x if outputs.h is None else outputs.h,
        "x": None if inputs.residual_gate is None else inputs.x,
        "mu": outputs.mu,
        "rstd": outputs.rstd,
    }
    return tuple(results[name] if name in results else getattr(inputs, name) for name in SAVED)


class Gradients(NamedTuple):
    """Gradients of the inputs of the row program, in their order; None where a gradient is not wanted."""

    x: Tensor | None
    residual: Tensor | None
    pre_bias: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    scale: Tensor | None = None
    shift: Tensor | None = None
    residual_gate: Tensor | None = None
    gate: Tensor | None = None


def gradients_like(inputs: BackwardInputs) -> dict[str, Tensor]:
    """By input of the row program, a tensor that its gradient is like, of those that are there.

    dx has the shape of dy; its dtype is the program's ``result_dtype``. x and residual have the shape of h.
    """
    like = dict(zip(ROWS_OF_H, (inputs.dy, inputs.h), strict=True))
    return like | {name: getattr(inputs, name) for name in Inputs._fields if name not in like}


def compute_dtype(*rows: Tensor | None) -> torch.dtype:
    """fp64 where a row is fp64, else fp32."""
    wide = any(row is not None and row.dtype == torch.float64 for row in rows)
    return torch.float64 if wide else torch.float32


def backward_dtype(h: Tensor, dy: Tensor, program: Program) -> torch.dtype:
    """The compute dtype of backward: that of forward, whose rows had the dtypes of dx and h."""
    wide = torch.float64 in (h.dtype, dy.dtype, program.result_dtype(dy.dtype))
    return torch.float64 if wide else torch.float32


def forward(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    residual_gate: Tensor | None,
    gate: Tensor | None,
    program: Program,
) -> ForwardOutputs:
    """The row program: ``y`` in the dtype of x or ``out_dtype``, ``h`` in the dtype of the residual."""
    each = each_dtype(program, x.dtype)
    h = prologue(x, residual, pre_bias, residual_gate, each)
    first, last = gate_factors(gate, program, h.dtype, each)
    deviation, mu, rstd = _moments(rounded(times(h, first), each), program)
    x_hat = _round_x_hat(deviation * rstd, program, x.dtype)
    z = modulate(affine(x_hat, weight, bias, program, each), scale, shift, program, each)
    stored_h = None if residual is None else h.to(residual.dtype)
    mu, rstd = stored_h_moments(stored_h, mu, rstd, program, first)
    y = activate(z, program.activation)
    if last is not None:
        y = before_gate(y, (weight, bias, scale, shift), program, x.dtype) * last
    return forward_outputs(y.to(program.result_dtype(x.dtype)), stored_h, mu, rstd)


def forward_outputs(y: Tensor, h: Tensor | None, mu: Tensor | None, rstd: Tensor) -> ForwardOutputs:
    """The results of forward. mu, rstd: (..., 1)."""
    return ForwardOutputs(y, h, None if mu is None else mu.squeeze(-1), rstd.squeeze(-1))


def rounding_changes_statistics(
    stored: torch.dtype, compute: torch.dtype, program: Program
) -> bool:
    """Whether storing h in the dtype ``stored`` can change mu and rstd by more than rounding errors.

    Where the elements of a row differ by less than one rounding step, the stored row has another mean and variance, and
    a gradient computed from the stored row and the original statistics would be wrong. A root mean square changes by
    one rounding error at most, so RMSNorm uses the original statistics. With rounding="each", all statistics are those
    of the stored row.
    """
    return program.center and stored != compute and program.rounding != "each"


def stored_h_moments(
    stored_h: Tensor | None,
    mu: Tensor | None,
    rstd: Tensor,
    program: Program,
    first_gate: Tensor | None = None,
) -> tuple[Tensor | None, Tensor]:
    """(mu, rstd), (..., 1), for backward: those of the stored h for rows that are ``is_far``, else the given ones.

    Without a stored h, and where it is not rounded, all are the given ones. Rounding h changes the statistics of the
    other rows by less than a rounding error of h. first_gate: the factor of the rows, or None, as ``gate_factors``
    returns it.
    """
    if stored_h is None or not rounding_changes_statistics(stored_h.dtype, rstd.dtype, program):
        return mu, rstd
    _, stored_mu, stored_rstd = _moments(times(stored_h.to(rstd.dtype), first_gate), program)
    assert mu is not None
    assert stored_mu is not None
    far = is_far(mu, rstd)
    return torch.where(far, stored_mu, mu), torch.where(far, stored_rstd, rstd)


def is_far(mu: Tensor, rstd: Tensor) -> Tensor:
    """Whether a row's mean is further from 0 than its standard deviation: ``|mu| * rstd > 1``."""
    return (mu * rstd).abs() > 1


def prologue(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    residual_gate: Tensor | None = None,
    each: torch.dtype | None = None,
) -> Tensor:
    """``h = [residual_gate *] (x [+ pre_bias]) [+ residual]``, in the compute dtype. each: ``each_dtype``."""
    compute = compute_dtype(x, residual)
    h = rounded(_add_pre_bias(x.to(compute), pre_bias), each)
    h = rounded(times(h, factor(residual_gate, 0.0, compute)), each)
    if residual is None:
        return h
    return rounded(h + residual.to(compute), None if each is None else residual.dtype)


def each_dtype(program: Program, x_dtype: torch.dtype) -> torch.dtype | None:
    """The dtype that every step is rounded to, that of x; None unless rounding="each"."""
    return x_dtype if program.rounding == "each" else None


def rounded(t: Tensor, dtype: torch.dtype | None) -> Tensor:
    """``t``, rounded to a dtype unless that is None. Its gradient is that of ``t``."""
    return t if dtype is None else t.to(dtype).to(t.dtype)


def before_gate(
    y: Tensor, parameters: Sequence[Tensor | None], program: Program, x_dtype: torch.dtype
) -> Tensor:
    """``y`` as a gate multiplies it. With rounding="llama" it has been a tensor of the dtype of x, unless a parameter
    of a wider one was multiplied with it.
    """
    one_dtype = all(t is None or t.dtype == x_dtype for t in parameters)
    rounds = program.rounding == "each" or (program.rounding == "llama" and one_dtype)
    return rounded(y, x_dtype if rounds else None)


def gate_factors(
    gate: Tensor | None, program: Program, dtype: torch.dtype, each: torch.dtype | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """(the factor of the rows before the norm, that of the result): ``gate_activation(gate)`` or None.

    each: ``each_dtype``.
    """
    if gate is None:
        return None, None
    factor = rounded(activate(gate.to(dtype), program.gate_activation), each)
    return (factor, None) if program.gate_first else (None, factor)


def factor(
    parameter: Tensor | None, shift: float, dtype: torch.dtype, each: torch.dtype | None = None
) -> Tensor | None:
    """``parameter + shift``, such as ``weight + weight_shift``, or None. each: the dtype that it is rounded to."""
    if parameter is None:
        return None
    parameter = parameter.to(dtype)
    return rounded(parameter + shift, each) if shift else parameter


def moments(
    h: Tensor,
    pre_bias: Tensor | None,
    gate: Tensor | None,
    program: Program,
    x_dtype: torch.dtype,
) -> tuple[Tensor | None, Tensor]:
    """(mu, rstd) of ``h [+ pre_bias]``, gated if ``gate_first``, as ``forward`` returns them."""
    each = each_dtype(program, x_dtype)
    h = rounded(_add_pre_bias(h.to(compute_dtype(h)), pre_bias), None if pre_bias is None else each)
    first, _ = gate_factors(gate, program, h.dtype, each)
    _, mu, rstd = _moments(times(h, first) if first is None else rounded(h * first, each), program)
    return None if mu is None else mu.squeeze(-1), rstd.squeeze(-1)


def backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """The gradients of the inputs of the row program, those that are ``wanted``. program: ``for_backward``."""
    dy, dh, h, pre_bias, weight, bias, scale, shift, residual_gate, gate, x, mu, rstd = inputs
    compute, x_dtype = backward_dtype(h, dy, program), program.result_dtype(dy.dtype)
    rstd = rstd.unsqueeze(-1)
    row = h.to(compute)
    each = each_dtype(program, x_dtype)
    if not has_residual:
        row = rounded(_add_pre_bias(row, pre_bias), each)
    first, last = gate_factors(gate, program, compute, each)
    deviation = row if first is None else rounded(row * first, each)
    if mu is not None:
        deviation = deviation - mu.unsqueeze(-1)
    x_hat = deviation * rstd
    rounded_x_hat = _round_x_hat(x_hat, program, x_dtype)
    z = affine(rounded_x_hat, weight, bias, program, each)
    modulated_z = modulate(z, scale, shift, program, each)
    dy = dy.to(compute)
    dmodulated_z = times(dy, last) * _activation_gradient(modulated_z, program.activation)
    dz = times(dmodulated_z, factor(scale, program.scale_shift, compute, each))
    g = times(dz, factor(weight, program.weight_shift, compute))
    du = g - x_hat * (g * x_hat).mean(-1, keepdim=True)
    if program.center:
        du = du - g.mean(-1, keepdim=True)
    du = du * rstd
    dgate = None
    if gate is not None:
        result = activate(modulated_z, program.activation)
        result = before_gate(result, (weight, bias, scale, shift), program, x_dtype)
        dgate = (du * row if last is None else dy * result) * _activation_gradient(
            gate.to(compute), program.gate_activation
        )
    dstream = times(du, first)
    if dh is not None:
        dstream = dstream + dh.to(compute)
    # Of x + pre_bias, before a residual_gate.
    dx = times(dstream, factor(residual_gate, 0.0, compute))

    def column_sum(per_row: Tensor, parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        return per_row.reshape(-1, per_row.shape[-1]).sum(0).to(parameter.dtype)

    def sample_sum(per_row: Tensor, parameter: Tensor | None) -> Tensor | None:
        return (
            None if parameter is None else per_row.sum_to_size(parameter.shape).to(parameter.dtype)
        )

    is_wanted = dict(zip(Gradients._fields, wanted, strict=True))
    dresidual_gate = None
    if is_wanted["residual_gate"] and x is not None:
        gated = _add_pre_bias(x.to(compute), pre_bias)
        dresidual_gate = sample_sum(dstream * gated, residual_gate)
    return Gradients(
        x=dx.to(x_dtype) if is_wanted["x"] else None,
        residual=dstream.to(h.dtype) if is_wanted["residual"] else None,
        pre_bias=column_sum(dx, pre_bias) if is_wanted["pre_bias"] else None,
        weight=column_sum(dz * rounded_x_hat, weight) if is_wanted["weight"] else None,
        bias=column_sum(dz, bias) if is_wanted["bias"] else None,
        scale=sample_sum(dmodulated_z * z, scale) if is_wanted["scale"] else None,
        shift=sample_sum(dmodulated_z, shift) if is_wanted["shift"] else None,
        residual_gate=dresidual_gate,
        gate=None
        if gate is None or dgate is None or not is_wanted["gate"]
        else dgate.to(gate.dtype),
    )


def _add_pre_bias(row: Tensor, pre_bias: Tensor | None) -> Tensor:
    return row if pre_bias is None else row + pre_bias.to(row.dtype)


def _moments(h: Tensor, program: Program) -> tuple[Tensor, Tensor | None, Tensor]:
    """(h - mu, mu, rstd), without a mean for RMSNorm."""
    if program.center:
        # The mean of the deviations corrects the rounding error of the mean, as the kernels do.
        n = h.shape[-1]
        mu = (h / n).sum(-1, keepdim=True)
        correction = (h - mu).mean(-1, keepdim=True)
        mu = mu + torch.where(correction.isfinite() | ~mu.isfinite(), correction, 0.0)
        deviation = h - mu
    else:
        deviation, mu = h, None
    variance = deviation.square().mean(-1, keepdim=True)
    return deviation, mu, 1.0 / torch.sqrt(variance + program.eps)


def _round_x_hat(x_hat: Tensor, program: Program, dtype: torch.dtype) -> Tensor:
    return x_hat.to(dtype).to(x_hat.dtype) if program.rounding == "llama" else x_hat


def affine(
    x_hat: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    program: Program,
    each: torch.dtype | None = None,
) -> Tensor:
    """``x_hat * (weight + weight_shift) + bias``: one step of PyTorch, with the norm. each: ``each_dtype``."""
    z = times(x_hat, factor(weight, program.weight_shift, x_hat.dtype))
    return rounded(z if bias is None else z + bias.to(z.dtype), each)


def modulate(
    z: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    program: Program,
    each: torch.dtype | None = None,
) -> Tensor:
    """``z * (scale + scale_shift) + shift``. each: ``each_dtype``."""
    z = rounded(times(z, factor(scale, program.scale_shift, z.dtype, each)), each)
    return z if shift is None else rounded(z + shift.to(z.dtype), each)


def times(z: Tensor, factor: Tensor | None) -> Tensor:
    """``z * factor``, or ``z`` without one."""
    return z if factor is None else z * factor


# Activations of the result and of a gate.
_ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda z: z,
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}


def activate(z: Tensor, activation: str | None) -> Tensor:
    """``activation(z)``."""
    return _ACTIVATIONS[activation](z)


def _activation_gradient(z: Tensor, activation: str | None) -> Tensor:
    match activation:
        case None:
            return torch.ones_like(z)
        case "relu":
            return torch.where(z <= 0, 0.0, 1.0).to(z.dtype)
        case "silu":
            return torch.sigmoid(z) + z * torch.sigmoid(z) * torch.sigmoid(-z)
        case "sigmoid":
            return torch.sigmoid(z) * torch.sigmoid(-z)
        case "gelu":
            return torch.special.ndtr(z) + z * torch.exp(-0.5 * z * z) * 0.3989422804014327
        case _:
            u = z * (1.5957691216057308 + 0.07135481627260025 * z * z)
            slope = 1.5957691216057308 + 0.21406444881780076 * z * z
            return torch.sigmoid(u) + z * torch.sigmoid(u) * torch.sigmoid(-u) * slope
