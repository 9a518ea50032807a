"""Forward: from a problem and its plan to kernel calls, and to a prepared call that runs them on tensors."""

from __future__ import annotations

from typing import Any

from ..kernels.forward.cluster import forward_cluster
from ..kernels.forward.multipass import forward_apply, forward_looped, forward_moments
from ..kernels.forward.resident import forward_resident
from ..program import RESULTS, ROWS, SAMPLES, Inputs, Program, named
from ..reference import compute_dtype
from .launcher import Allocated, Call, PreparedCall, Steps, bind_all
from .planning import Plan, n_parts, plan
from .problem import Problem, forward_problem
from .rows import (
    RowLayout,
    allocator,
    arguments,
    moments_program,
    required_layouts,
    required_strides,
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
    integers, constants = arguments(problem, plan, program, rows, samples)
    integers["rows_per_program"] = plan.rows_per_program or None
    constants |= {
        "EVEN_COLS": problem.n_cols % (plan.cluster_size * plan.block_cols) == 0,
        "PREFETCH_ROWS": plan.num_stages > 1,
        "PREFETCH_PARAMETERS": plan.prefetch_parameters,
        "FAST_RSTD": plan.fast_rstd,
        "EVICT_FIRST": plan.evict_first,
        "LOAD_EVICTION": plan.load_eviction,
        "PACK_X": plan.pack_x,
        "PACK_RESIDUAL": plan.pack_residual,
        "VECTOR_WIDTH": plan.vector_width,
        "KEPT_CHUNKS": plan.kept_chunks,
    }
    of_moments = constants | {"PROGRAM": moments_program(constants["PROGRAM"])}
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


def steps(
    problem: Problem, plan: Plan, inputs: Inputs, program: Program, want_statistics: bool
) -> Steps:
    """The kernels of a plan for tensors like these."""
    x, residual = inputs.x, inputs.residual
    layouts = required_layouts(*named(inputs, ROWS))
    strides = required_strides(x.shape, named(inputs, SAMPLES))
    kernels = calls(problem, plan, program, *layouts, samples=strides)
    # One kernel for training and inference, so that y has the same bits in both.
    want_statistics |= problem.batch_invariant
    compute = compute_dtype(x, residual)
    allocated: Allocated = {"y": (x.shape, program.result_dtype(x.dtype))}
    if residual is not None:
        allocated["h"] = (x.shape, residual.dtype)
    if want_statistics:
        allocated["rstd"] = (x.shape[:-1], compute)
        if program.center:
            allocated["mu"] = allocated["rstd"]
    if plan.regime == "split":
        allocated["parts"] = ((2, problem.n_rows, n_parts(plan, problem)), compute)
        if want_statistics and stored_h_dtype(problem, program) is not None:
            allocated["stored_h_parts"] = allocated["parts"]
    return Steps(kernels, inputs._asdict(), allocated)


def prepare(inputs: Inputs, program: Program, want_statistics: bool) -> PreparedCall:
    """Plan and compile. The result maps inputs to (y, h, mu, rstd), for tensors with the same shapes, strides, dtypes
    and alignment as these.
    """
    problem = forward_problem(inputs, program)
    kernels, tensors, allocated, _ = steps(problem, plan(problem), inputs, program, want_statistics)
    x = inputs.x
    allocators = {role: allocator(*one, x.device) for role, one in allocated.items()}
    return bind_all(kernels, tensors, allocators, RESULTS, x.get_device())
