"""The row program without a GPU: PyTorch's own LayerNorm where that can do the work, else one operator after the other.

A new option of the row program needs a say in ``prepare``, ``forward`` and ``backward``: PyTorch will not have it.

A large tensor that is made anew costs more than the arithmetic on it, so what belongs to nobody else is overwritten.
Derivatives of derivatives, and any device that is neither a CPU nor has our kernels, take ``reference``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..program import Program
from ..reference import Forward, Given, Gradients

# (x, residual, pre_bias, weight, bias), their addresses -> (y, h, mu, rstd)
Run = Callable[[tuple[Any, ...], Any], tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]]


def prepare(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    program: Program,
    want_statistics: bool,
) -> Run:
    """What is left to do for tensors like these."""
    plain = residual is None and pre_bias is None and program == Program(True, program.eps)
    one_dtype = all(each is None or each.dtype == x.dtype for each in (weight, bias))
    if plain and one_dtype and not want_statistics and x.device.type == "cpu":
        shape, eps = x.shape[-1:], program.eps

        def run_layer_norm(given: tuple[Any, ...], _addresses: Any) -> Any:
            x, _, _, weight, bias = given
            return torch.layer_norm(x, shape, weight, bias, eps), None, None, None

        return run_layer_norm

    def run(given: tuple[Any, ...], _addresses: Any) -> Any:
        made = forward(*given, program, want_statistics)  # type: ignore[call-arg]
        return made if want_statistics else (made.y, made.h, None, None)

    return run


def forward(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    program: Program,
    want_statistics: bool = True,
) -> Forward:
    """As ``reference.forward``. Statistics that nobody wants may be any."""
    x = x.contiguous()  # so is what is made of it, as everywhere
    residual = None if residual is None else residual.contiguous()
    if x.device.type != "cpu" or (program.center and program.rounding != "once"):
        return reference.forward(x, residual, pre_bias, weight, bias, program)
    h = reference.prologue(x, residual, pre_bias)
    factor = reference.scale(weight, program, h.dtype)
    shift = None if bias is None else bias.to(h.dtype)
    mu = None
    if program.center:
        z, mu, rstd = torch.native_layer_norm(h, h.shape[-1:], factor, shift, program.eps)
    else:
        rstd = _mean_square(h).add_(program.eps).sqrt_().reciprocal_()
        ours = h is not x and residual is None
        z = h.mul_(rstd) if ours else h * rstd
        if program.rounding == "llama":
            z = z.to(x.dtype).to(h.dtype)
        if factor is not None:
            z.mul_(factor)
        if shift is not None:
            z.add_(shift)
    kept = None if residual is None else h.to(residual.dtype)
    if (
        want_statistics
        and kept is not None
        and mu is not None
        and reference.moves_statistics(kept.dtype, h.dtype, program)
        and reference.is_far(mu, rstd).any()
    ):
        mu, rstd = reference.kept_moments(kept, mu, rstd, program)
    return Forward(
        y=reference.activate(z, program.activation).to(x.dtype),
        h=kept,
        mu=None if mu is None else mu.squeeze(-1),
        rstd=rstd.squeeze(-1),
    )


def backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """As ``reference.backward``."""
    # All of them: PyTorch reads the statistics as if they were.
    given = Given(*(each if each is None else each.contiguous() for each in given))  # type: ignore[arg-type]
    dy, dh, h, pre_bias, weight, bias, mu, rstd = given
    unlike_torchs = program.center and program.rounding != "once"
    if h.device.type != "cpu" or program.activation is not None or unlike_torchs:
        return reference.backward(given, program, has_residual, wanted)
    x_wanted, residual_wanted, pre_bias_wanted, weight_wanted, bias_wanted = wanted
    row = reference.prologue(h, None, None if has_residual else pre_bias).to(rstd.dtype)
    factor = reference.scale(weight, program, row.dtype)
    dz, rstd = dy.to(row.dtype), rstd.unsqueeze(-1)
    dx: Tensor
    if mu is not None:
        shift = None if bias is None else bias.to(row.dtype)
        need_dx = x_wanted or residual_wanted or pre_bias_wanted
        mu = mu.unsqueeze(-1)
        if reference.is_far(mu, rstd).any():
            # PyTorch takes mu * rstd from h * rstd, which leaves nothing of rows far from 0: it gets h - mu instead.
            row, mu = (row - mu if row is h else row.sub_(mu)), torch.zeros_like(mu)
        dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
            dz,
            row,
            row.shape[-1:],
            mu,
            rstd,
            factor,
            shift,
            [need_dx, weight_wanted, bias_wanted],
        )
    else:
        x_hat = row * rstd
        seen = x_hat.to(dy.dtype).to(row.dtype) if program.rounding == "llama" else x_hat
        dweight = _column_sum(dz * seen) if weight_wanted else None
        dbias = _column_sum(dz) if bias_wanted else None
        g = dz if factor is None else dz * factor
        x_hat.mul_((g * x_hat).mean(-1, keepdim=True))
        dx = torch.sub(g, x_hat, out=x_hat).mul_(rstd)
    if dh is not None and dx is not None:
        dx = dx + dh.to(dx.dtype)
    return Gradients(
        x=dx.to(dy.dtype) if x_wanted else None,
        residual=dx.to(h.dtype) if residual_wanted else None,
        pre_bias=_rounded(_column_sum(dx), pre_bias) if pre_bias_wanted else None,
        weight=_rounded(dweight, weight) if weight_wanted else None,
        bias=_rounded(dbias, bias) if bias_wanted else None,
    )


def _mean_square(h: Tensor) -> Tensor:
    """``mean(h^2)`` of each row, without a tensor of squares where the width allows.

    A norm adds its squares one after the other, so it is taken of short groups, and these are added in pairs.
    """
    n_cols = h.shape[-1]
    group = math.gcd(n_cols, 256)
    if group < 32:
        return h.square().mean(-1, keepdim=True)
    norms = torch.linalg.vector_norm(h.unflatten(-1, (n_cols // group, group)), dim=-1)
    return norms.square_().sum(-1, keepdim=True).div_(n_cols)


def _column_sum(rows: Tensor) -> Tensor:
    return rows.reshape(-1, rows.shape[-1]).sum(0)


def _rounded(column_sum: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None or column_sum is None else column_sum.to(parameter.dtype)
