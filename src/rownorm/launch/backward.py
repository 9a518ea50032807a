"""Backward: Problem -> Plan -> kernel calls, and a function that runs them on tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import backward as kernels
from ..kernels import backward_streamed as streamed
from ..kernels.backward_grid import backward_grid
from ..program import Program
from ..reference import Given, Gradients
from .device import device_of
from .launcher import Call, Run, bind_all
from .plan import MOST_PARTS, Plan, loads_dy_with_h, next_power_of_2, plan, sums_rows
from .problem import Problem
from .rows import alignment, allocator, compute_type, required_row_stride, rounding_type

GRADIENTS = tuple(f"d{name}" for name in Gradients._fields)
SUMS = GRADIENTS[2:]


def calls(
    problem: Problem,
    plan: Plan,
    program: Program,
    dy_stride: int,
    dh_stride: int,
    h_stride: int,
) -> list[Call]:
    """The kernels of a plan, in order, with everything but the tensors."""
    n_rows, n_cols = problem.n_rows, problem.n_cols
    align = alignment(n_cols, dy_stride, dh_stride, h_stride)
    n_parts = -(-n_cols // plan.part_cols) if plan.part_cols else 1
    n_col_blocks = -(-n_cols // plan.block_cols)
    integers = {
        "dy_row_stride": dy_stride // align,
        "dh_row_stride": dh_stride // align,
        "h_row_stride": h_stride // align,
        "n_rows": n_rows,
        "n_cols": n_cols // align,
        "n_parts": n_parts,
        "part_blocks": plan.part_cols // plan.block_cols,
        "part_cols": plan.part_cols // align,
        "n_col_blocks": n_col_blocks,
        "rows_per_program": max(1, -(-n_rows // plan.n_programs)),
        "n_partials": plan.n_programs,
    }
    constants = {
        "ALIGN": align,
        "CENTER": program.center,
        "WEIGHT_SHIFT": program.weight_shift,
        "ACTIVATION": program.activation,
        "ROUND_TO": rounding_type(program, problem),
        "COMPUTE": compute_type(problem),
        "BLOCK_ROWS": plan.block_rows,
        "BLOCK_COLS": plan.block_cols,
        "CHUNKS": plan.chunks,
        "EVEN_COLS": plan.cluster_size * plan.chunks * plan.block_cols == n_cols,
        "BLOCK_PARTS": 1 if n_parts == 1 else MOST_PARTS,
        "STAGES": plan.num_stages,
        "CLUSTER": plan.cluster_size,
        "SUM_ROWS": sums_rows(plan, problem),
        "READ_TOGETHER": loads_dy_with_h(plan, problem),
        "NUM_WARPS": plan.num_warps,
    }
    finished = False
    if plan.regime in ("tile", "resident", "cluster"):
        finished = plan.n_programs == 1
        tile, grid = kernels.backward_tile, plan.n_programs
        steps = [
            Call(
                tile,
                grid,
                plan.num_warps,
                integers,
                constants,
                plan.cluster_size,
                programs_per_sm=plan.programs_per_sm,
            )
        ]
    elif plan.regime == "grid":
        finished = plan.n_programs == 1  # one group writes the sums itself
        constants |= {
            "EVEN_COLS": n_parts * plan.block_cols == n_cols,
            "BLOCK_PARTS": next_power_of_2(n_parts),
            "LAG": plan.pipeline_depth,
        }
        steps = [
            Call(
                backward_grid,
                plan.n_programs * n_parts,
                plan.num_warps,
                integers,
                constants,
                maxnreg=plan.maxnreg,
                cooperative=True,
            )
        ]
    else:
        steps = [
            Call(streamed.backward_sums, n_rows * n_parts, plan.num_warps, integers, constants),
            Call(
                streamed.backward_apply,
                plan.n_programs * n_col_blocks,
                plan.num_warps,
                integers,
                constants,
            ),
        ]
    if problem.n_column_sums and not finished:
        rows, cols, num_warps = _sum_block(problem)
        grid = -(-n_cols // cols) * problem.n_column_sums
        sum_constants = {**constants, "BLOCK_ROWS": rows, "BLOCK_COLS": cols}
        steps.append(Call(kernels.column_sums, grid, num_warps, integers, sum_constants))
    return steps


def _sum_block(problem: Problem) -> tuple[int, int, int]:
    """Rows and columns of one tile of the last kernel, and its warps: enough programs, but none for little.

    Short rows leave many partial sums of few columns; wide rows few sums of many. An NVIDIA GPU fetches 8 columns at
    least. It goes by the width alone: nothing is compiled for another number of rows.
    """
    if problem.n_cols <= 4096 and problem.device.arch.startswith("sm_"):
        return 512, 8, 8
    return (128, 32, 4) if problem.n_cols <= 16384 else (32, 128, 4)


def problem_of(
    h: Tensor, dy: Tensor, has_residual: bool, program: Program, wanted: tuple[bool, ...]
) -> Problem:
    n_cols = h.shape[-1]
    return Problem(
        direction="backward",
        n_rows=h.numel() // n_cols,
        n_cols=n_cols,
        dtype=dy.dtype,
        residual_dtype=h.dtype if has_residual else None,
        center=program.center,
        n_column_sums=sum(wanted[2:]),
        device=device_of(h.get_device()),
        activation=program.activation,
    )


def prepare(given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]) -> Run:
    """Plan and compile: the tensors of ``given`` -> their ``Gradients``, for tensors with the same shapes, strides,
    dtypes and alignment.
    """
    dy, dh, h, pre_bias, weight, bias, _, rstd = given
    problem = problem_of(h, dy, has_residual, program, wanted)
    chosen = plan(problem)
    n_cols = problem.n_cols
    steps = calls(
        problem,
        chosen,
        program,
        required_row_stride(dy),
        n_cols if dh is None else required_row_stride(dh),
        required_row_stride(h),
    )
    new = functools.partial(allocator, device=h.device)
    n_parts = steps[0].integers["n_parts"]
    makers: dict[str, Callable[[], Tensor]] = {}
    if chosen.regime in ("looped", "split"):
        makers["parts"] = new((2, problem.n_rows, n_parts), rstd.dtype)
    if chosen.regime == "grid":
        mail = (problem.n_rows, n_parts)
        makers["mail"] = functools.partial(torch.zeros, mail, dtype=torch.int64, device=h.device)
    fixed: dict[str, Tensor] = {}
    for name, like, want in zip(GRADIENTS, (dy, h, pre_bias, weight, bias), wanted, strict=True):
        if not want or like is None:
            continue
        makers[name] = new(like.shape, like.dtype)
        if name in SUMS and steps[-1].kernel is kernels.column_sums:
            makers[f"{name}_partial"] = new((chosen.n_programs, n_cols), rstd.dtype)
        elif name in SUMS:
            # Not written; but a kernel is compiled for its dtype, and for any number of rows that is the same kernel.
            fixed[f"{name}_partial"] = new((1,), rstd.dtype)()

    roles = list(Given._fields)
    if has_residual:
        roles[roles.index("pre_bias")] = ""  # h has it already
    tensors = dict(zip(roles, given, strict=True))
    return bind_all(steps, tensors, makers, fixed, GRADIENTS, h.get_device())
