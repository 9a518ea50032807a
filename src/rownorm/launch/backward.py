"""Backward: from a problem and its plan to kernel calls, and to a prepared call that runs them on tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
    rows_of,
    samples_of,
)
from ..reference import BackwardInputs, gradients_like
from .launcher import Call, PreparedCall, bind_all
from .planning import Plan, n_parts, plan
from .planning.settings import SumsTile
from .problem import Problem, backward_problem
from .rows import (
    RowLayout,
    alignment,
    allocator,
    kernel_program,
    required_layouts,
    required_strides,
    row_integers,
    sample_integers,
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
    n_rows, n_cols = problem.n_rows, problem.n_cols
    rows = dict.fromkeys(BACKWARD_ROWS, RowLayout(0))
    rows |= dict(zip(BACKWARD_ROWS, layouts, strict=False))
    divisibility = alignment(
        n_cols, *(size for one in rows.values() for size in (one.stride, one.gap)), *samples
    )
    integers = {
        **row_integers(problem, rows, divisibility),
        "n_rows": n_rows,
        "n_cols": n_cols // divisibility,
        "n_parts": n_parts(plan, problem),
        "part_blocks": plan.part_cols // plan.block_cols,
        "part_cols": plan.part_cols // divisibility,
        "n_col_blocks": -(-n_cols // plan.block_cols),
        "rows_per_program": max(1, -(-n_rows // plan.n_programs)),
        "n_partials": plan.n_programs,
        **sample_integers(problem, samples, divisibility),
        **_span_integers(problem, plan),
    }
    constants = {
        "DIVISIBILITY": divisibility,
        "GROUP_ROWS": rows["h"].group_rows,
        "WIDE_ROWS": problem.dtype.itemsize > 2,
        "OWN_SAMPLES": plan.own_samples,
        "PROGRAM": kernel_program(problem, program),
        **_plan_constants(problem, plan),
    }
    if plan.regime == "grid":
        steps = [_grid_call(problem, plan, integers, constants)]
    elif plan.regime in ("looped", "split"):
        steps = _multipass_calls(problem, plan, integers, constants)
    else:
        steps = [_resident_call(plan, integers, constants)]
    if tile := plan.sums_tile:
        n_sums = problem.n_column_sums - problem.n_sample_sums
        steps.append(_sums_call(column_sums, n_sums, problem, tile, integers, constants))
    if tile := plan.sample_sums_tile:
        assert problem.samples is not None
        n_sums = problem.samples.n_samples * problem.n_sample_sums
        steps.append(_sums_call(sample_sums, n_sums, problem, tile, integers, constants))
    return steps


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


def _plan_constants(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Constants that say how it is computed. A kernel takes those that its signature names."""
    return {
        "BLOCK_ROWS": plan.block_rows,
        "BLOCK_COLS": plan.block_cols,
        "NUM_CHUNKS": plan.chunks,
        "EVEN_COLS": plan.cluster_size * plan.chunks * plan.block_cols == problem.n_cols,
        "BLOCK_PARTS": plan.block_parts,
        "NUM_STAGES": plan.num_stages,
        "CLUSTER_SIZE": plan.cluster_size,
        "SUM_ROWS": plan.sum_rows,
        "LOAD_DY_WITH_H": plan.load_dy_with_h,
        "LATENCY_HIDDEN": plan.latency_hidden,
        "SCALAR_STATISTICS": plan.scalar_statistics,
        "SEND_PER_WARP": plan.send_per_warp,
        "NUM_WARPS": plan.num_warps,
    }


def _resident_call(plan: Plan, integers: dict[str, Any], constants: dict[str, Any]) -> Call:
    """Regimes tile, resident and cluster."""
    return Call(
        backward_resident,
        plan.n_programs,
        plan.num_warps,
        integers,
        constants,
        plan.cluster_size,
        plan.maxnreg,
        programs_per_sm=plan.programs_per_sm,
    )


def _grid_call(
    problem: Problem, plan: Plan, integers: dict[str, Any], constants: dict[str, Any]
) -> Call:
    """Regime grid."""
    parts = n_parts(plan, problem)
    constants |= {
        "EVEN_COLS": parts * plan.block_cols == problem.n_cols,
        "PIPELINE_DEPTH": plan.pipeline_depth,
    }
    return Call(
        backward_grid,
        plan.n_programs * parts,
        plan.num_warps,
        integers,
        constants,
        maxnreg=plan.maxnreg,
        cooperative=True,
    )


def _multipass_calls(
    problem: Problem, plan: Plan, integers: dict[str, Any], constants: dict[str, Any]
) -> list[Call]:
    """Regimes looped and split."""
    parts, n_col_blocks = integers["n_parts"], integers["n_col_blocks"]
    return [
        Call(backward_sums, problem.n_rows * parts, plan.num_warps, integers, constants),
        Call(backward_apply, plan.n_programs * n_col_blocks, plan.num_warps, integers, constants),
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


def prepare(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> PreparedCall:
    """Plan and compile. The result maps tensors like ``inputs`` to their ``Gradients``, for tensors with the same
    shapes, strides, dtypes and alignment.
    """
    dy, h, rstd = inputs.dy, inputs.h, inputs.rstd
    samples = samples_of(inputs)
    problem = backward_problem(h, dy, has_residual, program, wanted, samples, inputs.gate)
    chosen = plan(problem)
    n_cols = problem.n_cols
    layouts = required_layouts(*rows_of(inputs, BACKWARD_ROWS))
    strides = required_strides(h.shape, samples)
    steps = calls(problem, chosen, program, *layouts, samples=strides)
    new = functools.partial(allocator, device=h.device)
    parts = steps[0].integers["n_parts"]
    allocators: dict[str, Callable[[], Tensor]] = {}
    if chosen.regime in ("looped", "split"):
        allocators["parts"] = new((2, problem.n_rows, parts), rstd.dtype)
    if chosen.regime == "grid":
        shape = (problem.n_rows, parts)
        allocators["messages"] = functools.partial(
            torch.zeros, shape, dtype=torch.int64, device=h.device
        )
    stand_ins: dict[str, str] = {}
    likes = gradients_like(inputs).values()
    for name, like, want in zip(GRADIENTS, likes, wanted, strict=True):
        if not want or like is None:
            continue
        dtype = program.result_dtype(dy.dtype) if name == "dx" else like.dtype
        allocators[name] = new(like.shape, dtype)
        if name in COLUMN_SUMS and chosen.sums_tile:
            allocators[f"{name}_partial"] = new((chosen.n_programs, n_cols), rstd.dtype)
        elif name in SAMPLE_SUMS and chosen.sample_sums_tile:
            assert problem.samples is not None
            n_spans = problem.samples.n_samples * chosen.spans_per_sample
            allocators[f"{name}_partial"] = new((n_spans, n_cols), rstd.dtype)
        elif name in (*COLUMN_SUMS, *SAMPLE_SUMS):
            # Never stored to. The kernel takes one all the same, so that it is the same kernel for any number of rows.
            # A tensor that is kept for this could belong to the memory pool of a CUDA graph.
            stand_ins[f"{name}_partial"] = "rstd"

    # A kernel does not get a term of h where h was stored, unless there is a residual_gate. It stays an input, under a
    # name that no kernel has.
    are_unread = has_residual and inputs.residual_gate is None
    terms = [name for name, one in INPUTS.items() if one.in_h and are_unread]
    tensors = {f"{name} in h" if name in terms else name: t for name, t in inputs._asdict().items()}
    return bind_all(steps, tensors, allocators, GRADIENTS, h.get_device(), stand_ins)
