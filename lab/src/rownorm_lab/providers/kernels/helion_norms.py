"""LayerNorm and RMSNorm in Helion's language, which compiles to Triton and tunes itself: forward and backward.

    x_hat = (x - mu) * rstd, y = x_hat * weight + bias
    g = dy * weight, dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)), both means of a row; RMSNorm without the first
    dweight = sum over rows of dy * x_hat, dbias = sum of dy

Backward has two kernels: one with sums over the rows of each program, and PyTorch's sum of these. Imported only where
Helion is installed. The annotations are read by Helion, so they are no strings.
"""

import os

import helion  # type: ignore[import-not-found,unused-ignore]
import helion.language as hl  # type: ignore[import-not-found,unused-ignore]
import torch
from torch import Tensor

# How long Helion searches for the fastest settings of a shape: "none", "quick" (minutes) or "full".
SETTINGS = {
    "static_shapes": True,
    "autotune_effort": os.environ.get("HELION_AUTOTUNE_EFFORT", "quick"),
}


@helion.kernel(**SETTINGS)  # type: ignore[untyped-decorator,unused-ignore]
def rms_norm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(y, rstd)"""
    n_rows, _ = x.size()
    y = torch.empty_like(x)
    rstd = torch.empty([n_rows], dtype=torch.float32, device=x.device)
    for rows in hl.tile(n_rows):
        row = x[rows, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(row * row, dim=-1) + eps)
        y[rows, :] = (row * scale[:, None] * weight[:].to(torch.float32)).to(x.dtype)
        rstd[rows] = scale
    return y, rstd


@helion.kernel(**SETTINGS)  # type: ignore[untyped-decorator,unused-ignore]
def layer_norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mu, rstd)"""
    n_rows, _ = x.size()
    y = torch.empty_like(x)
    mu = torch.empty([n_rows], dtype=torch.float32, device=x.device)
    rstd = torch.empty([n_rows], dtype=torch.float32, device=x.device)
    for rows in hl.tile(n_rows):
        row = x[rows, :].to(torch.float32)
        mean = torch.mean(row, dim=-1)
        deviation = row - mean[:, None]
        scale = torch.rsqrt(torch.mean(deviation * deviation, dim=-1) + eps)
        z = deviation * scale[:, None] * weight[:].to(torch.float32) + bias[:].to(torch.float32)
        y[rows, :] = z.to(x.dtype)
        mu[rows] = mean
        rstd[rows] = scale
    return y, mu, rstd


@helion.kernel(**SETTINGS)  # type: ignore[untyped-decorator,unused-ignore]
def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """(dx, dweight)"""
    n_rows, n_cols = x.size()
    program_rows = hl.register_block_size(n_rows)
    n_programs = (n_rows + program_rows - 1) // program_rows
    dx = torch.empty_like(x)
    sums = torch.empty([n_programs, n_cols], dtype=torch.float32, device=x.device)
    for program in hl.tile(n_rows, block_size=program_rows):
        dweight = hl.zeros([n_cols], dtype=torch.float32)
        for rows in hl.tile(program.begin, program.end):
            gradient = dy[rows, :].to(torch.float32)
            scale = rstd[rows][:, None]
            x_hat = x[rows, :].to(torch.float32) * scale
            g = gradient * weight[:].to(torch.float32)
            along = torch.mean(g * x_hat, dim=-1)[:, None]
            dx[rows, :] = ((g - x_hat * along) * scale).to(x.dtype)
            dweight += torch.sum(gradient * x_hat, dim=0)
        sums[program.id, :] = dweight
    return dx, sums.sum(0).to(weight.dtype)


@helion.kernel(**SETTINGS)  # type: ignore[untyped-decorator,unused-ignore]
def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mu: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dweight, dbias)"""
    n_rows, n_cols = x.size()
    program_rows = hl.register_block_size(n_rows)
    n_programs = (n_rows + program_rows - 1) // program_rows
    dx = torch.empty_like(x)
    weight_sums = torch.empty([n_programs, n_cols], dtype=torch.float32, device=x.device)
    bias_sums = torch.empty([n_programs, n_cols], dtype=torch.float32, device=x.device)
    for program in hl.tile(n_rows, block_size=program_rows):
        dweight = hl.zeros([n_cols], dtype=torch.float32)
        dbias = hl.zeros([n_cols], dtype=torch.float32)
        for rows in hl.tile(program.begin, program.end):
            gradient = dy[rows, :].to(torch.float32)
            scale = rstd[rows][:, None]
            x_hat = (x[rows, :].to(torch.float32) - mu[rows][:, None]) * scale
            g = gradient * weight[:].to(torch.float32)
            along = torch.mean(g * x_hat, dim=-1)[:, None]
            mean = torch.mean(g, dim=-1)[:, None]
            dx[rows, :] = ((g - mean - x_hat * along) * scale).to(x.dtype)
            dweight += torch.sum(gradient * x_hat, dim=0)
            dbias += torch.sum(gradient, dim=0)
        weight_sums[program.id, :] = dweight
        bias_sums[program.id, :] = dbias
    return dx, weight_sums.sum(0).to(weight.dtype), bias_sums.sum(0).to(weight.dtype)
