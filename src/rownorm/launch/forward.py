"""Forward: Problem -> Plan -> kernel calls, and a function that runs them on tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import forward as kernels
from ..program import Program
from ..reference import compute_dtype
from .launcher import Call, bind
from .planner import next_power_of_2, plan
from .problem import Plan, Problem, device_of
from .rows import alignment, compute_type, required_row_stride, rounding_type

ROLES = ("x", "residual", "pre_bias", "weight", "bias", "y", "h", "mu", "rstd", "parts")

# (x, residual, pre_bias, weight, bias) -> (y, h, mu, rstd)
Run = Callable[
    [Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
]


def calls(
    problem: Problem, plan: Plan, program: Program, x_stride: int, residual_stride: int
) -> list[Call]:
    """The kernels of a plan, in order, with everything but the tensors."""
    n_rows, n_cols = problem.n_rows, problem.n_cols
    align = alignment(n_cols, x_stride, residual_stride)
    n_parts = -(-n_cols // plan.part_cols) if plan.regime == "split" else 1
    integers = {
        "x_row_stride": x_stride // align,
        "residual_row_stride": residual_stride // align,
        "n_rows": n_rows,
        "n_cols": n_cols // align,
        "n_parts": n_parts,
    }
    constants = {
        "ALIGN": align,
        "CENTER": program.center,
        "EPS": program.eps,
        "WEIGHT_SHIFT": program.weight_shift,
        "ACTIVATION": program.activation,
        "ROUND_TO": rounding_type(program, problem),
        "COMPUTE": compute_type(problem),
        "BLOCK_ROWS": plan.block_rows,
        "BLOCK_COLS": plan.block_cols,
        "EVEN_COLS": plan.block_cols == n_cols,
        "PART_COLS": plan.part_cols,
        "BLOCK_PARTS": next_power_of_2(n_parts),
    }
    if plan.regime == "split":
        steps = [(kernels.forward_moments, n_rows * n_parts), (kernels.forward_apply, n_rows * n_parts)]
    elif plan.regime == "looped":
        steps = [(kernels.forward_looped, n_rows)]
    else:
        steps = [(kernels.forward_tile, -(-n_rows // plan.block_rows))]
    return [Call(kernel, grid, plan.num_warps, integers, constants) for kernel, grid in steps]


def problem_of(x: Tensor, residual: Tensor | None, program: Program) -> Problem:
    n_cols = x.shape[-1]
    return Problem(
        direction="forward",
        n_rows=x.numel() // n_cols,
        n_cols=n_cols,
        dtype=x.dtype,
        residual_dtype=None if residual is None else residual.dtype,
        center=program.center,
        n_column_sums=0,
        device=device_of(x.get_device()),
    )


def prepare(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    program: Program,
    want_statistics: bool,
) -> Run:
    """Plan and compile; the result runs on tensors with the same shapes, strides, dtypes and alignment."""
    problem = problem_of(x, residual, program)
    chosen = plan(problem)
    x_stride = required_row_stride(x)
    residual_stride = problem.n_cols if residual is None else required_row_stride(residual)
    steps = calls(problem, chosen, program, x_stride, residual_stride)
    compute = compute_dtype(x, residual)
    want_mu = want_statistics and program.center
    parts_shape = (2, problem.n_rows, steps[0].integers["n_parts"])

    def allocate(x: Tensor, residual: Tensor | None) -> tuple[Tensor | None, ...]:
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        h = mu = rstd = parts = None
        if residual is not None:
            h = torch.empty_like(residual, memory_format=torch.contiguous_format)
        if want_mu:
            mu = torch.empty(x.shape[:-1], dtype=compute, device=x.device)
        if want_statistics:
            rstd = torch.empty(x.shape[:-1], dtype=compute, device=x.device)
        if chosen.regime == "split":
            parts = torch.empty(parts_shape, dtype=compute, device=x.device)
        return y, h, mu, rstd, parts

    example = (x, residual, pre_bias, weight, bias, *allocate(x, residual))
    starts = [bind(call, ROLES, example, x.get_device()) for call in steps]

    def run(x, residual, pre_bias, weight, bias):  # type: ignore[no-untyped-def]
        made = allocate(x, residual)
        tensors = (x, residual, pre_bias, weight, bias, *made)
        for start in starts:
            start(tensors)
        return made[:4]

    return run
