"""Forward: from a problem and its plan to kernel calls, and to a prepared call that runs them on tensors."""

from __future__ import annotations

import functools
from typing import Any

from ..kernels.forward.cluster import forward_cluster
from ..kernels.forward.multipass import forward_apply, forward_looped, forward_moments
from ..kernels.forward.resident import forward_resident
from ..program import RESULTS, ROWS, SAMPLES, Inputs, Program, rows_of, samples_of
from ..reference import compute_dtype
from .launcher import Call, PreparedCall, bind_all
from .planning import Plan, n_parts, plan
from .problem import Problem, forward_problem
from .rows import (
    RowLayout,
    alignment,
    allocator,
    kernel_program,
    moments_program,
    required_layouts,
    required_strides,
    row_integers,
    sample_integers,
    stored_h_dtype,
)


def calls(
    problem: Problem,
    plan: Plan,
    program: Program,
    *layouts: RowLayout,
    samples: tuple[int, ...] = (0,) * len(SAMPLES),
) -> list[Call]:
    """The kernels of a plan in order, with everything but the tensors.

    layouts: of ``ROWS``; those that are left out are absent. samples: ``rows.sample_strides``.
    """
    rows = dict.fromkeys(ROWS, RowLayout(0)) | dict(zip(ROWS, layouts, strict=False))
    sizes = (size for one in rows.values() for size in (one.stride, one.gap))
    divisibility = alignment(problem.n_cols, *sizes, *samples)
    integers = {
        **row_integers(problem, rows, divisibility),
        "n_rows": problem.n_rows,
        "n_cols": problem.n_cols // divisibility,
        "n_parts": n_parts(plan, problem),
        "part_blocks": plan.part_cols // plan.block_cols,
        **sample_integers(problem, samples, divisibility),
        "rows_per_program": plan.rows_per_program or None,
    }
    spec = kernel_program(problem, program)
    constants = {
        "DIVISIBILITY": divisibility,
        "GROUP_ROWS": rows["x"].group_rows,
        "PROGRAM": spec,
        **_plan_constants(problem, plan),
    }
    of_moments = constants | {"PROGRAM": moments_program(spec)}
    return [
        Call(
            kernel,
            grid,
            plan.num_warps,
            integers,
            of_moments if kernel is forward_moments else constants,
            plan.cluster_size,
            plan.maxnreg,
            # A product that is rounded to 16 bits before a sum is computed in 16 bits, and fused with that sum.
            fp_fusion=not problem.rounds_each,
        )
        for kernel, grid in _kernels(problem, plan)
    ]


def _kernels(problem: Problem, plan: Plan) -> list[tuple[Any, int]]:
    """The kernels of a regime in order, each with its number of programs; of clusters, in the cluster regime."""
    n_rows = problem.n_rows
    if plan.regime in ("tile", "resident"):
        return [(forward_resident, -(-n_rows // (plan.rows_per_program or plan.block_rows)))]
    if plan.regime == "cluster":
        return [(forward_cluster, plan.n_programs if n_rows else 0)]
    if plan.regime == "looped":
        return [(forward_looped, n_rows)]
    n_programs = n_rows * n_parts(plan, problem)
    return [(forward_moments, n_programs), (forward_apply, n_programs)]


def _plan_constants(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Constants that say how it is computed. A kernel takes those that its signature names."""
    return {
        "BLOCK_ROWS": plan.block_rows,
        "BLOCK_COLS": plan.block_cols,
        "NUM_CHUNKS": plan.chunks,
        "EVEN_COLS": problem.n_cols % (plan.cluster_size * plan.block_cols) == 0,
        "BLOCK_PARTS": plan.block_parts,
        "CLUSTER_SIZE": plan.cluster_size,
        "NUM_WARPS": plan.num_warps,
        "PREFETCH_ROWS": plan.num_stages > 1,
        "NUM_STAGES": plan.num_stages,
        "PREFETCH_PARAMETERS": plan.prefetch_parameters,
        "FAST_RSTD": plan.fast_rstd,
        "EVICT_FIRST": plan.evict_first,
        "LOAD_EVICTION": plan.load_eviction,
        "PACK_X": plan.pack_x,
        "PACK_RESIDUAL": plan.pack_residual,
        "VECTOR_WIDTH": plan.vector_width,
        "KEPT_CHUNKS": plan.kept_chunks,
    }


def prepare(inputs: Inputs, program: Program, want_statistics: bool) -> PreparedCall:
    """Plan and compile. The result maps inputs to (y, h, mu, rstd), for tensors with the same shapes, strides, dtypes
    and alignment as these.
    """
    x, residual = inputs.x, inputs.residual
    samples = samples_of(inputs)
    problem = forward_problem(x, residual, inputs.pre_bias, program, samples, inputs.gate)
    # One kernel for training and inference, so that y has the same bits in both.
    want_statistics |= problem.batch_invariant
    chosen = plan(problem)
    layouts = required_layouts(*rows_of(inputs, ROWS))
    strides = required_strides(x.shape, samples)
    steps = calls(problem, chosen, program, *layouts, samples=strides)
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
