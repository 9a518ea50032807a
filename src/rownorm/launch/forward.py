"""Forward: from a problem and its plan to kernel calls, and to a prepared call that runs them on tensors."""

from __future__ import annotations

import functools
from typing import Any

from ..kernels.forward.cluster import forward_cluster
from ..kernels.forward.multipass import forward_apply, forward_looped, forward_moments
from ..kernels.forward.resident import forward_resident
from ..program import RESULTS, Inputs, Program
from ..reference import compute_dtype
from .launcher import Call, PreparedCall, bind_all
from .planning import MOST_PARTS, Plan, plan
from .problem import Problem, forward_problem
from .rows import (
    RowLayout,
    alignment,
    allocator,
    kernel_program,
    packs,
    required_layouts,
    stored_h_dtype,
)


def calls(
    problem: Problem, plan: Plan, program: Program, x: RowLayout, residual: RowLayout
) -> list[Call]:
    """The kernels of a plan in order, with everything but the tensors."""
    divisibility = alignment(problem.n_cols, x.stride, residual.stride, x.gap, residual.gap)
    integers = {
        "x_row_stride": x.stride // divisibility,
        "residual_row_stride": residual.stride // divisibility,
        "x_group_gap": x.gap // divisibility,
        "residual_group_gap": residual.gap // divisibility,
        "n_rows": problem.n_rows,
        "n_cols": problem.n_cols // divisibility,
        "n_parts": _n_parts(problem, plan),
        "part_blocks": plan.part_cols // plan.block_cols,
    }
    constants = {
        "DIVISIBILITY": divisibility,
        "GROUP_ROWS": x.group_rows,
        "PROGRAM": kernel_program(problem, program),
        **_plan_constants(problem, plan),
    }
    return [
        Call(kernel, grid, plan.num_warps, integers, constants, plan.cluster_size, plan.maxnreg)
        for kernel, grid in _kernels(problem, plan)
    ]


def _kernels(problem: Problem, plan: Plan) -> list[tuple[Any, int]]:
    """The kernels of a regime in order, each with its number of programs; of clusters, in the cluster regime."""
    n_rows = problem.n_rows
    if plan.regime in ("tile", "resident"):
        return [(forward_resident, -(-n_rows // plan.block_rows))]
    if plan.regime == "cluster":
        return [(forward_cluster, plan.n_programs if n_rows else 0)]
    if plan.regime == "looped":
        return [(forward_looped, n_rows)]
    n_programs = n_rows * _n_parts(problem, plan)
    return [(forward_moments, n_programs), (forward_apply, n_programs)]


def _n_parts(problem: Problem, plan: Plan) -> int:
    """Programs that share a row in the split regime, else 1."""
    return -(-problem.n_cols // plan.part_cols) if plan.regime == "split" else 1


def _plan_constants(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Constants that say how it is computed. A kernel takes those that its signature names."""
    return {
        "BLOCK_ROWS": plan.block_rows,
        "BLOCK_COLS": plan.block_cols,
        "NUM_CHUNKS": plan.chunks,
        "EVEN_COLS": problem.n_cols % (plan.cluster_size * plan.block_cols) == 0,
        "BLOCK_PARTS": 1 if _n_parts(problem, plan) == 1 else MOST_PARTS,
        "CLUSTER_SIZE": plan.cluster_size,
        "NUM_WARPS": plan.num_warps,
        "PREFETCH_ROWS": plan.num_stages > 1,
        "PREFETCH_PARAMETERS": plan.prefetch_parameters,
        "FAST_RSTD": plan.fast_rstd,
        "EVICT_FIRST": _evicts_results_first(problem, plan),
        "PACK_X": packs(problem.dtype, problem, plan),
        "PACK_RESIDUAL": packs(problem.residual_dtype, problem, plan),
    }


def _evicts_results_first(problem: Problem, plan: Plan) -> bool:
    """Whether results are stored as the first to leave L2, so that the next kernel may have to load them from memory.

    As measured on an H200. Cluster: without it, prefetched rows take a fifth longer, except beside a residual. Looped:
    1 to 2% longer, except rows of up to 8192 columns, whose second load hits L1. Tile and resident: with prefetched
    parameters, 8 rows take 8 ns less.
    """
    if plan.regime == "cluster":
        return plan.num_stages > 1 and problem.residual_dtype is None
    if plan.regime == "looped":
        return not 0 < plan.chunks * plan.block_cols <= 8192
    return plan.regime == "split" or plan.prefetch_parameters


def prepare(inputs: Inputs, program: Program, want_statistics: bool) -> PreparedCall:
    """Plan and compile. The result maps inputs to (y, h, mu, rstd), for tensors with the same shapes, strides, dtypes
    and alignment as these.
    """
    x, residual = inputs.x, inputs.residual
    problem = forward_problem(x, residual, inputs.pre_bias, program)
    chosen = plan(problem)
    steps = calls(problem, chosen, program, *required_layouts(x, residual))
    compute = compute_dtype(x, residual)
    new = functools.partial(allocator, device=x.device)
    allocators = {"y": new(x.shape, program.result_dtype(x.dtype))}
    if residual is not None:
        allocators["h"] = new(x.shape, residual.dtype)
    if want_statistics:
        allocators["rstd"] = new(x.shape[:-1], compute)
        if program.center:
            allocators["mu"] = allocators["rstd"]
    if chosen.regime == "split":
        allocators["parts"] = new((2, problem.n_rows, steps[0].integers["n_parts"]), compute)
        if want_statistics and stored_h_dtype(problem, program) is not None:
            allocators["stored_h_parts"] = allocators["parts"]

    return bind_all(steps, inputs._asdict(), allocators, RESULTS, x.get_device())
