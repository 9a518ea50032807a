"""The row program in plain PyTorch: the path without a GPU, and the oracle when it is given fp64.

Every function computes in fp32, or fp64 where a row is fp64, and rounds once, at the end. All of it is made of
differentiable operations, so that autograd, forward mode and ``torch.func`` can go through it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .program import Program


class Forward(NamedTuple):
    """What the row program makes of a row; ``h`` and ``mu`` where it has them. Statistics are for backward: see
    ``kept_moments``.
    """

    y: Tensor
    h: Tensor | None
    mu: Tensor | None
    rstd: Tensor


class Given(NamedTuple):
    """What backward is given. Without a residual ``h`` is x, and ``pre_bias`` is added again."""

    dy: Tensor
    dh: Tensor | None
    h: Tensor
    pre_bias: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    mu: Tensor | None
    rstd: Tensor


class Gradients(NamedTuple):
    """Gradients of the tensors of the row program, in the order in which they are passed."""

    x: Tensor | None
    residual: Tensor | None
    pre_bias: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def compute_dtype(*rows: Tensor | None) -> torch.dtype:
    """fp64 where a row is fp64, else fp32."""
    wide = any(row is not None and row.dtype == torch.float64 for row in rows)
    return torch.float64 if wide else torch.float32


def forward(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    program: Program,
) -> Forward:
    """The row program: ``y`` in x's dtype, ``h`` in the residual's."""
    h = prologue(x, residual, pre_bias)
    deviation, mu, rstd = _moments(h, program)
    seen = _as_weight_sees(deviation * rstd, program, x.dtype)
    z = _affine(seen, weight, bias, program)
    kept = None if residual is None else h.to(residual.dtype)
    if kept is not None and moves_statistics(kept.dtype, h.dtype, program):
        mu, rstd = kept_moments(kept, mu, rstd, program)
    return Forward(
        y=activate(z, program.activation).to(x.dtype),
        h=kept,
        mu=mu.squeeze(-1) if program.center else None,
        rstd=rstd.squeeze(-1),
    )


def moves_statistics(kept: torch.dtype, compute: torch.dtype, program: Program) -> bool:
    """Whether rows kept in this dtype can have quite other statistics than they had in ``compute``.

    Where a row varies less than its numbers are rounded, its mean and variance are another row's, and no gradient
    follows from the two together. A root mean square is off by the rounding of one number at most, and stays.
    """
    return program.center and kept != compute


def kept_moments(kept: Tensor, mu: Tensor, rstd: Tensor, program: Program) -> tuple[Tensor, Tensor]:
    """(mu, rstd), (..., 1), of rows as they are kept, given those they had.

    Only where rows are further from 0 than they vary: the others are moved by less than their numbers are rounded.
    """
    _, kept_mu, kept_rstd = _moments(kept.to(rstd.dtype), program)
    far = is_far(mu, rstd)
    return torch.where(far, kept_mu, mu), torch.where(far, kept_rstd, rstd)


def is_far(mu: Tensor, rstd: Tensor) -> Tensor:
    """Whether rows are further from 0 than they vary."""
    return (mu * rstd).abs() > 1


def prologue(x: Tensor, residual: Tensor | None, pre_bias: Tensor | None) -> Tensor:
    """``h = x [+ pre_bias] [+ residual]``, as the statistics see it."""
    compute = compute_dtype(x, residual)
    h = _add_pre_bias(x.to(compute), pre_bias)
    return h if residual is None else h + residual.to(compute)


def scale(weight: Tensor | None, program: Program, dtype: torch.dtype) -> Tensor | None:
    """``weight + weight_shift``, or None."""
    if weight is None:
        return None
    weight = weight.to(dtype)
    return weight + program.weight_shift if program.weight_shift else weight


def moments(h: Tensor, pre_bias: Tensor | None, program: Program) -> tuple[Tensor | None, Tensor]:
    """(mu, rstd) of ``h [+ pre_bias]``, as ``forward`` returns them."""
    _, mu, rstd = _moments(_add_pre_bias(h.to(compute_dtype(h)), pre_bias), program)
    return (mu.squeeze(-1) if program.center else None), rstd.squeeze(-1)


def backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """The gradients of (x, residual, pre_bias, weight, bias), those that are ``wanted``."""
    dy, dh, h, pre_bias, weight, bias, mu, rstd = given
    compute = compute_dtype(h, dy)
    rstd = rstd.unsqueeze(-1)
    deviation = h.to(compute)
    if not has_residual:
        deviation = _add_pre_bias(deviation, pre_bias)
    if mu is not None:
        deviation = deviation - mu.unsqueeze(-1)
    x_hat = deviation * rstd
    seen = _as_weight_sees(x_hat, program, dy.dtype)
    z = _affine(seen, weight, bias, program)
    dz = dy.to(compute) * _activation_gradient(z, program.activation)
    factor = scale(weight, program, compute)
    g = dz if factor is None else dz * factor
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

    x_wanted, residual_wanted, pre_bias_wanted, weight_wanted, bias_wanted = wanted
    return Gradients(
        x=dx.to(dy.dtype) if x_wanted else None,
        residual=dx.to(h.dtype) if residual_wanted else None,
        pre_bias=column_sum(dx, pre_bias) if pre_bias_wanted else None,
        weight=column_sum(dz * seen, weight) if weight_wanted else None,
        bias=column_sum(dz, bias) if bias_wanted else None,
    )


def _add_pre_bias(row: Tensor, pre_bias: Tensor | None) -> Tensor:
    return row if pre_bias is None else row + pre_bias.to(row.dtype)


def _moments(h: Tensor, program: Program) -> tuple[Tensor, Tensor, Tensor]:
    if program.center:
        # The mean of the deviations is what rounding did to the mean: see kernels.moments.refined_mean.
        n = h.shape[-1]
        mu = (h / n).sum(-1, keepdim=True)
        mu = mu + (h - mu).mean(-1, keepdim=True)
        deviation = h - mu
    else:
        deviation, mu = h, h.new_zeros(())
    variance = deviation.square().mean(-1, keepdim=True)
    return deviation, mu, 1.0 / torch.sqrt(variance + program.eps)


def _as_weight_sees(x_hat: Tensor, program: Program, dtype: torch.dtype) -> Tensor:
    return x_hat.to(dtype).to(x_hat.dtype) if program.rounding == "llama" else x_hat


def _affine(x_hat: Tensor, weight: Tensor | None, bias: Tensor | None, program: Program) -> Tensor:
    factor = scale(weight, program, x_hat.dtype)
    z = x_hat if factor is None else x_hat * factor
    return z if bias is None else z + bias.to(z.dtype)


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
