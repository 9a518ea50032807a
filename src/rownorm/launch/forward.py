"""Forward: Problem -> Plan -> kernel calls, and a function that runs them on tensors."""

from __future__ import annotations

import functools

from torch import Tensor

from ..kernels import forward as kernels
from ..kernels import forward_cluster as clustered
from ..kernels import forward_streamed as streamed
from ..program import Program
from ..reference import compute_dtype
from .device import device_of
from .launcher import Call, Run, bind_all
from .plan import MOST_PARTS, Plan, plan
from .problem import Problem
from .rows import (
    alignment,
    allocator,
    compute_type,
    kept_type,
    packs,
    required_row_stride,
    rounding_type,
)

GIVEN = ("x", "residual", "pre_bias", "weight", "bias")
MADE = ("y", "h", "mu", "rstd")


def _results_leave(problem: Problem, plan: Plan) -> bool:
    """Whether results are stored to be the first to leave L2, which the kernel that comes next may regret.

    As measured. Rows that are loaded ahead, but for those beside a residual, are a fifth slower otherwise; rows that
    are read again 1 or 2 %, but for those of up to 8192 columns, which come back from L1. Where parameters are early, 8
    rows take 8 ns less.
    """
    if plan.regime == "cluster":
        return plan.num_stages > 1 and problem.residual_dtype is None
    if plan.regime == "looped":
        return not 0 < plan.chunks * plan.block_cols <= 8192
    return plan.regime == "split" or plan.prefetch_parameters


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
        "part_blocks": plan.part_cols // plan.block_cols,
    }
    constants = {
        "ALIGN": align,
        "CENTER": program.center,
        "EPS": program.eps,
        "WEIGHT_SHIFT": program.weight_shift,
        "ACTIVATION": program.activation,
        "ROUND_TO": rounding_type(program, problem),
        "KEPT_AS": kept_type(program, problem),
        "COMPUTE": compute_type(problem),
        "BLOCK_ROWS": plan.block_rows,
        "BLOCK_COLS": plan.block_cols,
        "CHUNKS": plan.chunks,
        "EVEN_COLS": n_cols % (plan.cluster_size * plan.block_cols) == 0,
        "BLOCK_PARTS": 1 if n_parts == 1 else MOST_PARTS,
        "CLUSTER": plan.cluster_size,
        "NUM_WARPS": plan.num_warps,
        "AHEAD": plan.num_stages > 1,
        "EARLY": plan.prefetch_parameters,
        "SHORT": plan.fast_rstd,
        "LEAVES": _results_leave(problem, plan),
        "PACK_X": packs(problem.dtype, problem, plan),
        "PACK_RESIDUAL": packs(problem.residual_dtype, problem, plan),
    }
    if plan.regime == "split":
        steps = [
            (streamed.forward_moments, n_rows * n_parts),
            (streamed.forward_apply, n_rows * n_parts),
        ]
    elif plan.regime == "looped":
        steps = [(streamed.forward_looped, n_rows)]
    elif plan.regime == "cluster":
        steps = [(clustered.forward_cluster, plan.n_programs if n_rows else 0)]
    else:
        steps = [(kernels.forward_tile, -(-n_rows // plan.block_rows))]
    return [
        Call(kernel, grid, plan.num_warps, integers, constants, plan.cluster_size, plan.maxnreg)
        for kernel, grid in steps
    ]


def problem_of(
    x: Tensor, residual: Tensor | None, pre_bias: Tensor | None, program: Program
) -> Problem:
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
        activation=program.activation,
        pre_bias=pre_bias is not None,
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
    """Plan and compile: (x, residual, pre_bias, weight, bias) -> (y, h, mu, rstd), for tensors with the same
    shapes, strides, dtypes and alignment.
    """
    problem = problem_of(x, residual, pre_bias, program)
    chosen = plan(problem)
    x_stride = required_row_stride(x)
    residual_stride = problem.n_cols if residual is None else required_row_stride(residual)
    steps = calls(problem, chosen, program, x_stride, residual_stride)
    compute = compute_dtype(x, residual)
    new = functools.partial(allocator, device=x.device)
    makers = {"y": new(x.shape, x.dtype)}
    if residual is not None:
        makers["h"] = new(x.shape, residual.dtype)
    if want_statistics:
        makers["rstd"] = new(x.shape[:-1], compute)
        if program.center:
            makers["mu"] = makers["rstd"]
    if chosen.regime == "split":
        makers["parts"] = new((2, problem.n_rows, steps[0].integers["n_parts"]), compute)
        if want_statistics and steps[0].constants["KEPT_AS"] is not None:
            makers["kept_parts"] = makers["parts"]

    given = dict(zip(GIVEN, (x, residual, pre_bias, weight, bias), strict=True))
    return bind_all(steps, given, makers, {}, MADE, x.get_device())
