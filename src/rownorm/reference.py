"""The row program in plain PyTorch: used without a GPU, for second derivatives, and as the oracle with fp64 input.

Every function computes in fp32, or in fp64 where a row is fp64, and rounds once, at the end. All operations are
differentiable, so autograd, forward mode and ``torch.func`` can differentiate through them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .program import PARAMETERS, Inputs, Program


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
    mu: Tensor | None
    rstd: Tensor


def backward_inputs(
    dy: Tensor, dh: Tensor | None, inputs: Inputs, outputs: ForwardOutputs
) -> BackwardInputs:
    """What backward reads after this forward pass."""
    h = inputs.x if outputs.h is None else outputs.h
    parameters = {name: getattr(inputs, name) for name in PARAMETERS}
    return BackwardInputs(dy=dy, dh=dh, h=h, **parameters, mu=outputs.mu, rstd=outputs.rstd)


class Gradients(NamedTuple):
    """Gradients of the inputs of the row program, in their order; None where a gradient is not wanted."""

    x: Tensor | None
    residual: Tensor | None
    pre_bias: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    scale: Tensor | None = None
    shift: Tensor | None = None


def gradients_like(inputs: BackwardInputs) -> dict[str, Tensor]:
    """By input of the row program, a tensor that its gradient is like, of those that are there.

    dx has the shape of dy; its dtype is the program's ``result_dtype``. x and residual have the shape of h.
    """
    like = {"x": inputs.dy, "residual": inputs.h}
    return like | {name: getattr(inputs, name) for name in PARAMETERS}


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
    program: Program,
) -> ForwardOutputs:
    """The row program: ``y`` in the dtype of x or ``out_dtype``, ``h`` in the dtype of the residual."""
    h = prologue(x, residual, pre_bias)
    deviation, mu, rstd = _moments(h, program)
    x_hat = _round_x_hat(deviation * rstd, program, x.dtype)
    z = modulate(affine(x_hat, weight, bias, program), scale, shift, program)
    stored_h = None if residual is None else h.to(residual.dtype)
    if stored_h is not None and rounding_changes_statistics(stored_h.dtype, h.dtype, program):
        mu, rstd = stored_h_moments(stored_h, mu, rstd, program)
    return ForwardOutputs(
        y=activate(z, program.activation).to(program.result_dtype(x.dtype)),
        h=stored_h,
        mu=mu.squeeze(-1) if program.center else None,
        rstd=rstd.squeeze(-1),
    )


def rounding_changes_statistics(
    stored: torch.dtype, compute: torch.dtype, program: Program
) -> bool:
    """Whether storing h in the dtype ``stored`` can change mu and rstd by more than rounding errors.

    Where the elements of a row differ by less than one rounding step, the stored row has another mean and variance, and
    a gradient computed from the stored row and the original statistics would be wrong. A root mean square changes by
    one rounding error at most, so RMSNorm uses the original statistics.
    """
    return program.center and stored != compute


def stored_h_moments(
    stored_h: Tensor, mu: Tensor, rstd: Tensor, program: Program
) -> tuple[Tensor, Tensor]:
    """(mu, rstd), (..., 1), for backward: those of the stored h for rows that are ``is_far``, else the given ones.

    Rounding h changes the statistics of the other rows by less than a rounding error of h.
    """
    _, stored_mu, stored_rstd = _moments(stored_h.to(rstd.dtype), program)
    far = is_far(mu, rstd)
    return torch.where(far, stored_mu, mu), torch.where(far, stored_rstd, rstd)


def is_far(mu: Tensor, rstd: Tensor) -> Tensor:
    """Whether a row's mean is further from 0 than its standard deviation: ``|mu| * rstd > 1``."""
    return (mu * rstd).abs() > 1


def prologue(x: Tensor, residual: Tensor | None, pre_bias: Tensor | None) -> Tensor:
    """``h = x [+ pre_bias] [+ residual]``, in the compute dtype."""
    compute = compute_dtype(x, residual)
    h = _add_pre_bias(x.to(compute), pre_bias)
    return h if residual is None else h + residual.to(compute)


def factor(parameter: Tensor | None, shift: float, dtype: torch.dtype) -> Tensor | None:
    """``parameter + shift``, such as ``weight + weight_shift``, or None."""
    if parameter is None:
        return None
    parameter = parameter.to(dtype)
    return parameter + shift if shift else parameter


def moments(h: Tensor, pre_bias: Tensor | None, program: Program) -> tuple[Tensor | None, Tensor]:
    """(mu, rstd) of ``h [+ pre_bias]``, as ``forward`` returns them."""
    _, mu, rstd = _moments(_add_pre_bias(h.to(compute_dtype(h)), pre_bias), program)
    return (mu.squeeze(-1) if program.center else None), rstd.squeeze(-1)


def backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """The gradients of the inputs of the row program, those that are ``wanted``. program: ``for_backward``."""
    dy, dh, h, pre_bias, weight, bias, scale, shift, mu, rstd = inputs
    compute, x_dtype = backward_dtype(h, dy, program), program.result_dtype(dy.dtype)
    rstd = rstd.unsqueeze(-1)
    deviation = h.to(compute)
    if not has_residual:
        deviation = _add_pre_bias(deviation, pre_bias)
    if mu is not None:
        deviation = deviation - mu.unsqueeze(-1)
    x_hat = deviation * rstd
    rounded_x_hat = _round_x_hat(x_hat, program, x_dtype)
    z = affine(rounded_x_hat, weight, bias, program)
    modulated_z = modulate(z, scale, shift, program)
    dmodulated_z = dy.to(compute) * _activation_gradient(modulated_z, program.activation)
    dz = _times(dmodulated_z, factor(scale, program.scale_shift, compute))
    g = _times(dz, factor(weight, program.weight_shift, compute))
    dx = g - x_hat * (g * x_hat).mean(-1, keepdim=True)
    if program.center:
        dx = dx - g.mean(-1, keepdim=True)
    dx = dx * rstd
    if dh is not None:
        dx = dx + dh.to(compute)

    def column_sum(per_row: Tensor, parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        return per_row.reshape(-1, per_row.shape[-1]).sum(0).to(parameter.dtype)

    def sample_sum(per_row: Tensor, parameter: Tensor | None) -> Tensor | None:
        return (
            None if parameter is None else per_row.sum_to_size(parameter.shape).to(parameter.dtype)
        )

    x_wanted, residual_wanted, *parameters_wanted = wanted
    pre_bias_wanted, weight_wanted, bias_wanted, scale_wanted, shift_wanted = parameters_wanted
    return Gradients(
        x=dx.to(x_dtype) if x_wanted else None,
        residual=dx.to(h.dtype) if residual_wanted else None,
        pre_bias=column_sum(dx, pre_bias) if pre_bias_wanted else None,
        weight=column_sum(dz * rounded_x_hat, weight) if weight_wanted else None,
        bias=column_sum(dz, bias) if bias_wanted else None,
        scale=sample_sum(dmodulated_z * z, scale) if scale_wanted else None,
        shift=sample_sum(dmodulated_z, shift) if shift_wanted else None,
    )


def _add_pre_bias(row: Tensor, pre_bias: Tensor | None) -> Tensor:
    return row if pre_bias is None else row + pre_bias.to(row.dtype)


def _moments(h: Tensor, program: Program) -> tuple[Tensor, Tensor, Tensor]:
    if program.center:
        # The mean of the deviations corrects the rounding error of the mean, as the kernels do.
        n = h.shape[-1]
        mu = (h / n).sum(-1, keepdim=True)
        correction = (h - mu).mean(-1, keepdim=True)
        mu = mu + torch.where(correction.isfinite() | ~mu.isfinite(), correction, 0.0)
        deviation = h - mu
    else:
        deviation, mu = h, h.new_zeros(())
    variance = deviation.square().mean(-1, keepdim=True)
    return deviation, mu, 1.0 / torch.sqrt(variance + program.eps)


def _round_x_hat(x_hat: Tensor, program: Program, dtype: torch.dtype) -> Tensor:
    return x_hat.to(dtype).to(x_hat.dtype) if program.rounding == "llama" else x_hat


def affine(x_hat: Tensor, weight: Tensor | None, bias: Tensor | None, program: Program) -> Tensor:
    """``x_hat * (weight + weight_shift) + bias``."""
    z = _times(x_hat, factor(weight, program.weight_shift, x_hat.dtype))
    return z if bias is None else z + bias.to(z.dtype)


def modulate(z: Tensor, scale: Tensor | None, shift: Tensor | None, program: Program) -> Tensor:
    """``z * (scale + scale_shift) + shift``."""
    z = _times(z, factor(scale, program.scale_shift, z.dtype))
    return z if shift is None else z + shift.to(z.dtype)


def _times(z: Tensor, factor: Tensor | None) -> Tensor:
    return z if factor is None else z * factor


def activate(z: Tensor, activation: str | None) -> Tensor:
    """``activation(z)``."""
    match activation:
        case None:
            return z
        case "relu":
            return F.relu(z)
        case "silu":
            return F.silu(z)
        case "gelu":
            return F.gelu(z)
        case _:
            return F.gelu(z, approximate="tanh")


def _activation_gradient(z: Tensor, activation: str | None) -> Tensor:
    match activation:
        case None:
            return torch.ones_like(z)
        case "relu":
            return torch.where(z <= 0, 0.0, 1.0).to(z.dtype)
        case "silu":
            return torch.sigmoid(z) + z * torch.sigmoid(z) * torch.sigmoid(-z)
        case "gelu":
            return torch.special.ndtr(z) + z * torch.exp(-0.5 * z * z) * 0.3989422804014327
        case _:
            u = z * (1.5957691216057308 + 0.07135481627260025 * z * z)
            slope = 1.5957691216057308 + 0.21406444881780076 * z * z
            return torch.sigmoid(u) + z * torch.sigmoid(u) * torch.sigmoid(-u) * slope
