"""The row program without a GPU: PyTorch's own LayerNorm where that can do the work, else the reference.

PyTorch's kernel is some ten times as fast as the reference, which makes a dozen passes over the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from ..program import Program
from ..reference import Forward, Given, Gradients


def forward(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    program: Program,
) -> Forward:
    """As ``reference.forward``."""
    if not _torch_has_it(x, program):
        return reference.forward(x, residual, pre_bias, weight, bias, program)
    h = reference.prologue(x, residual, pre_bias)
    factor = reference.scale(weight, program, h.dtype)
    shift = None if bias is None else bias.to(h.dtype)
    z, mu, rstd = torch.native_layer_norm(h, h.shape[-1:], factor, shift, program.eps)
    return Forward(
        y=reference.activate(z, program.activation).to(x.dtype),
        h=None if residual is None else h.to(residual.dtype),
        mu=mu.squeeze(-1),
        rstd=rstd.squeeze(-1),
    )


def backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """As ``reference.backward``."""
    dy, dh, h, pre_bias, weight, bias, mu, rstd = given
    if mu is None or program.activation is not None or not _torch_has_it(h, program):
        return reference.backward(given, program, has_residual, wanted)
    x_wanted, residual_wanted, pre_bias_wanted, weight_wanted, bias_wanted = wanted
    row = reference.prologue(h, None, None if has_residual else pre_bias).to(rstd.dtype)
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dy.to(row.dtype),
        row,
        row.shape[-1:],
        mu.unsqueeze(-1),
        rstd.unsqueeze(-1),
        reference.scale(weight, program, row.dtype),
        None if bias is None else bias.to(row.dtype),
        [x_wanted or residual_wanted or pre_bias_wanted, weight_wanted, bias_wanted],
    )
    if dh is not None and dx is not None:
        dx = dx + dh.to(dx.dtype)
    return Gradients(
        x=dx.to(dy.dtype) if x_wanted else None,
        residual=dx.to(h.dtype) if residual_wanted else None,
        pre_bias=_rounded(dx.reshape(-1, dx.shape[-1]).sum(0), pre_bias)
        if pre_bias_wanted
        else None,
        weight=_rounded(dweight, weight) if weight_wanted else None,
        bias=_rounded(dbias, bias) if bias_wanted else None,
    )


def _torch_has_it(t: Tensor, program: Program) -> bool:
    """Whether PyTorch's LayerNorm does all that is asked. A new option of the row program needs a say here."""
    return program.center and program.rounding == "once" and t.device.type == "cpu"


def _rounded(column_sum: Tensor, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else column_sum.to(parameter.dtype)
