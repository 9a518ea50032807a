"""Whether a result agrees with a form of the row program.

Another order of summation changes an fp32 result by a few roundings, and one element in thousands of a 16-bit result by
one rounding. A wrong structure changes an fp32 result by far more. A wrong rounding changes a fifth of a 16-bit result.
Between the two limits nothing is decided.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from ..program import Inputs, Program, Rounding
from .forms import Structure

# The largest share of different elements, in rows of one magnitude, of a form that agrees.
AGREE = 0.02
DISAGREE = 0.10  # the smallest share of a form that does not
SLACK = 32  # rounding errors of the compute dtype that another order of summation may make


def program_of(structure: Structure, rounding: Rounding, out_dtype: torch.dtype) -> Program:
    """The program of a structure. ``out_dtype`` is always named, so that autocast does not change it."""
    return Program(
        center=structure.center,
        eps=structure.eps,
        weight_shift=structure.weight_shift,
        rounding=rounding,
        out_dtype=out_dtype,
    )


def llama_differs(structure: Structure, x_dtype: torch.dtype, out_dtype: torch.dtype) -> bool:
    """Whether ``rounding="llama"`` is another program than ``rounding="once"``."""
    if x_dtype in (torch.float32, torch.float64):
        return False
    return structure.weight is not None or structure.bias is not None or out_dtype != x_dtype


def expected_result(
    x: Tensor, tensors: dict[str, Tensor], structure: Structure, program: Program
) -> Tensor:
    """The result of the form."""
    weight = None if structure.weight is None else tensors[structure.weight]
    bias = None if structure.bias is None else tensors[structure.bias]
    return reference.forward(*Inputs(x, None, None, weight, bias), program).y


def share_off(
    y: Tensor, x: Tensor, tensors: dict[str, Tensor], structure: Structure, program: Program
) -> float:
    """The share of elements that another order of summation does not explain, in the magnitude where it is largest.

    1.0 if an element differs by more than a rounding.
    """
    expected = expected_result(x, tensors, structure, program)
    if y.dtype != expected.dtype:
        return 1.0
    compute = reference.compute_dtype(x)
    h = x.to(compute)
    mu = h.mean(-1, keepdim=True) if structure.center else h.new_zeros(())
    rstd = ((h - mu).square().mean(-1, keepdim=True) + program.eps).rsqrt()
    scale = h.new_ones(())
    if structure.weight is not None:
        scale = (tensors[structure.weight].to(compute) + program.weight_shift).abs()
    size = (h.abs() + mu.abs()) * rstd * scale
    if structure.bias is not None:
        size = size + tensors[structure.bias].to(compute).abs()
    coarse = [torch.finfo(y.dtype)] + [torch.finfo(x.dtype)] * (program.rounding == "llama")
    slack = SLACK * torch.finfo(compute).eps * size
    rounding = 2 * max(info.eps for info in coarse) * size
    rounding = rounding + max(info.smallest_normal * info.eps for info in coarse) * (1 + scale)
    difference = (y.to(compute) - expected.to(compute)).abs()
    same = (y == expected) | (y.isnan() & expected.isnan())
    if not (same | (difference <= slack + rounding)).all():
        return 1.0
    off = (~same & (difference > slack)).flatten(1)
    return off.float().mean(1).max().item()
