"""Whether a result agrees with a form of the row program.

Another order of summation changes an fp32 result by a few roundings, and one element in thousands of a 16-bit result by
one rounding. A wrong structure changes an fp32 result by far more. A wrong rounding changes a fifth of a 16-bit result.
Between the two limits nothing is decided.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import reference
from ..ops.groups import in_groups
from ..program import Inputs, Program, Rounding
from .forms import Structure

# The largest share of different elements, in rows of one magnitude, of a form that agrees.
AGREE = 0.02
DISAGREE = 0.10  # the smallest share of a form that does not
SLACK = 32  # rounding errors of the compute dtype that another order of summation may make
GATE_SEED = 21


def program_of(structure: Structure, rounding: Rounding, out_dtype: torch.dtype) -> Program:
    """The program of a structure. ``out_dtype`` is always named, so that autocast does not change it."""
    return Program(
        center=structure.center,
        eps=structure.eps,
        weight_shift=structure.weight_shift,
        gate_activation=structure.gate_activation,
        gate_first=structure.gate_first,
        rounding=rounding,
        out_dtype=out_dtype,
    )


def llama_differs(structure: Structure, x_dtype: torch.dtype, out_dtype: torch.dtype) -> bool:
    """Whether ``rounding="llama"`` is another program than ``rounding="once"``."""
    if x_dtype in (torch.float32, torch.float64):
        return False
    return structure.weight is not None or structure.bias is not None or out_dtype != x_dtype


def gate_of(x: Tensor) -> Tensor:
    """The gate that a probe passes with these rows: the same for every call with rows of this shape."""
    generator = torch.Generator().manual_seed(GATE_SEED)
    gate = 2 * torch.randn(x.shape, generator=generator, dtype=torch.float32, device="cpu")
    return gate.to(x.device, x.dtype)


def expected_result(
    x: Tensor,
    tensors: dict[str, Tensor],
    structure: Structure,
    program: Program,
    gate: Tensor | None = None,
) -> Tensor:
    """The result of the form. gate: that of a gated one, if it is not ``gate_of(x)``."""
    weight = None if structure.weight is None else tensors[structure.weight]
    bias = None if structure.bias is None else tensors[structure.bias]
    if structure.is_gated and gate is None:
        gate = gate_of(x)
    inputs = Inputs(x, None, None, weight, bias, gate=gate)
    if structure.group_cols is None:
        return reference.forward(*inputs, program).y
    grouped, program = in_groups(inputs, program, structure.group_cols)
    return reference.forward(*grouped, program).y.flatten(-2)


class Rows(NamedTuple):
    """What a form normalizes, in groups: (..., groups, columns of a group) each, where there are groups."""

    deviation: Tensor  # u - mu
    size: Tensor  # |u| + |mu|
    variance: Tensor  # without eps
    factor: Tensor  # of the normalized row: weight and gate; () without either


def rows_of(x: Tensor, tensors: dict[str, Tensor], structure: Structure) -> Rows:
    """The rows of a form before they are divided, in the dtype of x. tensors: the module's vectors."""

    def view(t: Tensor) -> Tensor:
        return t if structure.group_cols is None else t.unflatten(-1, (-1, structure.group_cols))

    u, factor = view(x), x.new_ones(())
    if structure.weight is not None:
        factor = view(tensors[structure.weight].to(x.dtype) + structure.weight_shift)
    if structure.is_gated:
        gate = reference.activate(view(gate_of(x)), structure.gate_activation)
        u, factor = (u * gate, factor) if structure.gate_first else (u, factor * gate)
    mu = u.mean(-1, keepdim=True) if structure.center else u.new_zeros(())
    variance = (u - mu).square().mean(-1, keepdim=True)
    return Rows(u - mu, u.abs() + mu.abs(), variance, factor)


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
    rows = rows_of(x.to(compute), tensors, structure)
    size = (rows.size * (rows.variance + program.eps).rsqrt() * rows.factor.abs()).reshape(x.shape)
    largest = 1 + rows.factor.abs().max()
    if structure.bias is not None:
        size = size + tensors[structure.bias].to(compute).abs()
    coarse = [torch.finfo(y.dtype)] + [torch.finfo(x.dtype)] * (program.rounding == "llama")
    slack = SLACK * torch.finfo(compute).eps * size
    rounding = 2 * max(info.eps for info in coarse) * size
    rounding = rounding + max(info.smallest_normal * info.eps for info in coarse) * largest
    difference = (y.to(compute) - expected.to(compute)).abs()
    same = (y == expected) | (y.isnan() & expected.isnan())
    if not (same | (difference <= slack + rounding)).all():
        return 1.0
    off = (~same & (difference > slack)).flatten(1)
    return off.float().mean(1).max().item()
