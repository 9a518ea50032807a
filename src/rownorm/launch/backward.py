"""Backward: from a problem and its plan to kernel calls, and to a prepared call that runs them on tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..kernels.backward.column_sums import column_sums, sample_sums
from ..kernels.backward.grid import backward_grid
from ..kernels.backward.multipass import backward_apply, backward_sums
from ..kernels.backward.resident import backward_resident
from ..program import (
    BACKWARD_ROWS,
    COLUMN_SUMS,
    GRADIENTS,
    INPUTS,
    SAMPLE_SUMS,
    SAMPLES,
    Program,
    named,
)
from ..reference import BackwardInputs, gradients_like
from .launcher import Allocated, Call, PreparedCall, Steps, bind_all
from .planning import Plan, n_parts, plan
from .planning.settings import SumsTile
from .problem import Problem, backward_problem
from .rows import (
    RowLayout,
    allocator,
    arguments,
    required_layouts,
    required_strides,
)


def calls(
    problem: Problem,
    plan: Plan,
    program: Program,
    *layouts: RowLayout,
    samples: tuple[int, ...] = (0,) * len(SAMPLES),
) -> list[Call]:
    """The kernels of a plan in order, with everything but the tensors.

    layouts: of ``BACKWARD_ROWS``; those that are left out are absent. samples: ``rows.sample_strides``.
    """
    rows = dict.fromkeys(BACKWARD_ROWS, RowLayout(0))
    rows |= dict(zip(BACKWARD_ROWS, layouts, strict=False))
    integers, constants = arguments(problem, plan, program, rows, samples)
    in_grid = plan.regime == "grid"
    tiles = integers["n_parts"] if in_grid else plan.cluster_size * plan.chunks
    integers |= {
        "part_cols": plan.part_cols // constants["DIVISIBILITY"],
        "n_col_blocks": -(-problem.n_cols // plan.block_cols),
        "rows_per_program": max(1, -(-problem.n_rows // plan.n_programs)),
        "n_partials": plan.n_programs,
        **_span_integers(problem, plan),
    }
    constants |= {
        "EVEN_COLS": tiles * plan.block_cols == problem.n_cols,
        "WIDE_ROWS": problem.dtype.itemsize > 2,
        "OWN_SAMPLES": plan.own_samples,
        "SUM_ROWS": plan.sum_rows,
        "LOAD_DY_WITH_H": plan.load_dy_with_h,
        "LATENCY_HIDDEN": plan.latency_hidden,
        "SCALAR_STATISTICS": plan.scalar_statistics,
        "SEND_PER_WARP": plan.send_per_warp,
        "PIPELINE_DEPTH": plan.pipeline_depth,
    }
    kernels = _regime_calls(problem, plan, integers, constants)
    if tile := plan.sums_tile:
        n_sums = problem.n_column_sums - problem.n_sample_sums
        kernels.append(_sums_call(column_sums, n_sums, problem, tile, integers, constants))
    if tile := plan.sample_sums_tile:
        assert problem.samples is not None
        n_sums = problem.samples.n_samples * problem.n_sample_sums
        kernels.append(_sums_call(sample_sums, n_sums, problem, tile, integers, constants))
    return kernels


def _span_integers(problem: Problem, plan: Plan) -> dict[str, Any]:
    """How the kernels divide the rows of each sample into spans; None, which no kernel is passed, without samples."""
    if problem.samples is None:
        return dict.fromkeys(("sample_rows", "span_rows", "spans_per_sample"))
    sample_rows = problem.n_rows // max(1, problem.samples.n_samples)
    return {
        "sample_rows": sample_rows,
        "span_rows": -(-sample_rows // plan.spans_per_sample),
        "spans_per_sample": plan.spans_per_sample,
    }


def _regime_calls(
    problem: Problem, plan: Plan, integers: dict[str, Any], constants: dict[str, Any]
) -> list[Call]:
    """The kernels of a regime in order, each with its number of programs; of clusters, in the cluster regime."""
    started: dict[str, Any] = {}
    if plan.regime == "grid":
        grids = {backward_grid: plan.n_programs * integers["n_parts"]}
        started = {"maxnreg": plan.maxnreg, "cooperative": True}
    elif plan.regime in ("looped", "split"):
        grids = {
            backward_sums: problem.n_rows * integers["n_parts"],
            backward_apply: plan.n_programs * integers["n_col_blocks"],
        }
    else:
        grids = {backward_resident: plan.n_programs}
        started = {"maxnreg": plan.maxnreg, "cluster_size": plan.cluster_size}
        started["programs_per_sm"] = plan.programs_per_sm
    return [
        Call(kernel, grid, plan.num_warps, integers, constants, **started)
        for kernel, grid in grids.items()
    ]


def _sums_call(
    kernel: Any,
    n_sums: int,
    problem: Problem,
    tile: SumsTile,
    integers: dict[str, Any],
    constants: dict[str, Any],
) -> Call:
    """The kernel that adds up the partial sums of all programs, or of all spans of a sample. n_sums: of a column."""
    grid = -(-problem.n_cols // tile.cols) * n_sums
    constants = {**constants, "BLOCK_ROWS": tile.rows, "BLOCK_COLS": tile.cols}
    return Call(kernel, grid, tile.num_warps, integers, constants)


def steps(
    problem: Problem,
    plan: Plan,
    inputs: BackwardInputs,
    program: Program,
    has_residual: bool,
    wanted: tuple[bool, ...],
) -> Steps:
    """The kernels of a plan for tensors like these."""
    layouts = required_layouts(*named(inputs, BACKWARD_ROWS))
    strides = required_strides(inputs.h.shape, named(inputs, SAMPLES))
    kernels = calls(problem, plan, program, *layouts, samples=strides)
    compute, parts = inputs.rstd.dtype, n_parts(plan, problem)
    allocated: Allocated = {}
    if plan.regime in ("looped", "split"):
        allocated["parts"] = ((2, problem.n_rows, parts), compute)
    if plan.regime == "grid":
        allocated["messages"] = ((problem.n_rows, parts), torch.int64)
    stand_ins: dict[str, str] = {}
    likes = gradients_like(inputs).values()
    for name, like, want in zip(GRADIENTS, likes, wanted, strict=True):
        if not want or like is None:
            continue
        dtype = program.result_dtype(inputs.dy.dtype) if name == "dx" else like.dtype
        allocated[name] = (like.shape, dtype)
        if name in COLUMN_SUMS and plan.sums_tile:
            allocated[f"{name}_partial"] = ((plan.n_programs, problem.n_cols), compute)
        elif name in SAMPLE_SUMS and plan.sample_sums_tile:
            assert problem.samples is not None
            n_spans = problem.samples.n_samples * plan.spans_per_sample
            allocated[f"{name}_partial"] = ((n_spans, problem.n_cols), compute)
        elif name in (*COLUMN_SUMS, *SAMPLE_SUMS):
            # Never stored to. The kernel takes one all the same, so that it is the same kernel for any number of rows.
            # A tensor that is kept for this could belong to the memory pool of a CUDA graph.
            stand_ins[f"{name}_partial"] = "rstd"

    # A kernel does not get a term of h where h was stored, unless there is a residual_gate. It stays an input, under a
    # name that no kernel has.
    are_unread = has_residual and inputs.residual_gate is None
    terms = [name for name, one in INPUTS.items() if one.in_h and are_unread]
    tensors = {f"{name} in h" if name in terms else name: t for name, t in inputs._asdict().items()}
    return Steps(kernels, tensors, allocated, stand_ins)


def prepare(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> PreparedCall:
    """Plan and compile. The result maps tensors like ``inputs`` to their ``Gradients``, for tensors with the same
    shapes, strides, dtypes and alignment.
    """
    h = inputs.h
    problem = backward_problem(inputs, program, has_residual, wanted)
    kernels, tensors, allocated, stand_ins = steps(
        problem, plan(problem), inputs, program, has_residual, wanted
    )
    allocators = {role: allocator(*one, h.device) for role, one in allocated.items()}
    if "messages" in allocated:  # zero until they are sent
        shape, dtype = allocated["messages"]
        allocators["messages"] = functools.partial(torch.zeros, shape, dtype=dtype, device=h.device)
    return bind_all(kernels, tensors, allocators, GRADIENTS, h.get_device(), stand_ins)
