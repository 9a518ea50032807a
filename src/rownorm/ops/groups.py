"""Statistics over groups of columns: each group is a row of its own, and weight and bias become samples.

    x, residual, gate    (..., n_cols) -> (..., n_groups, group_cols), a view
    weight, bias         (n_cols,) -> scale and shift of shape (n_groups, group_cols): every n_groups-th row shares them

So the kernels need nothing for it. Their gradients, results and roundings are those of the rows and samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..program import COLUMNS, INPUTS, ROWS, Inputs, Program
from .checks import check

# What a call with groups has: one row of a group has no pre_bias of its own, and scale and shift are taken.
TENSORS = (*ROWS, "weight", "bias")


def in_groups(
    inputs: tuple[Any, ...], options: tuple[Any, ...], group_cols: Any
) -> tuple[Inputs, Program]:
    """The call of rows of ``group_cols`` columns that computes this one. Raises where there is none."""
    tensors, program = Inputs(*inputs), Program(*options)
    _check(tensors, program, group_cols)
    n_groups = tensors.x.shape[-1] // group_cols
    shape = (n_groups, group_cols)
    views: dict[str, Any] = {
        name: None if t is None else t.unflatten(-1, shape)
        for name, t in tensors._asdict().items()
        if name in TENSORS
    }
    if n_groups == 1:  # one row, as it is: weight and bias keep their places
        flat = {name: getattr(tensors, name) for name in COLUMNS}
        return tensors._replace(**(views | flat)), program
    weight, bias = views.pop("weight"), views.pop("bias")
    grouped = tensors._replace(**views, weight=None, bias=None, scale=weight, shift=bias)
    return grouped, program._replace(weight_shift=0.0, scale_shift=program.weight_shift)


def ungrouped(results: Any) -> Any:
    """y, or (y, h), in the shape of x."""
    if isinstance(results, Tensor):
        return results.flatten(-2)
    return tuple(t.flatten(-2) for t in results)


def _check(tensors: Inputs, program: Program, group_cols: Any) -> None:
    name = f"rownorm.{'' if tensors.residual is None else 'add_'}{program.name}"
    if isinstance(group_cols, bool) or not isinstance(group_cols, int):
        raise TypeError(
            f"{name}: group_cols must be an integer or None; got {type(group_cols).__name__}"
        )
    given = [one for one in INPUTS if getattr(tensors, one) is not None and one not in TENSORS]
    if given:
        raise ValueError(
            f"{name}: group_cols cannot be combined with {', '.join(given)}. Apply it to x or to the result, or leave "
            "group_cols out."
        )
    if not torch.compiler.is_compiling():  # the operator checks what it is called with
        check(tensors, program)
    n_cols = tensors.x.shape[-1]
    if group_cols <= 0 or n_cols % group_cols:
        raise ValueError(
            f"{name}: group_cols must divide the {n_cols} columns of x; got {group_cols}. "
            f"For n groups, pass group_cols={n_cols} // n."
        )
