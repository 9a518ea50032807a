"""Regime grid: programs all over the GPU share a row and exchange its sums through L2. Backward only.

    applies to     backward of rows too wide for one program or a cluster, on NVIDIA GPUs; not in fp64
    part_cols      columns of one program's part of a row
    n_programs     groups of programs; each group has whole rows, and all groups run at once

A program sends its sums of a row, goes on to later rows, and uses the sums ``pipeline_depth`` rows later. All programs
must run at once, so the launch is cooperative. Where that is not possible, rows are looped or split.
"""

from __future__ import annotations

import dataclasses

from ..problem import Problem
from . import multipass
from .capacity import (
    PARTIAL_SUM_BYTES,
    ceil_div,
    most_stages,
    next_power_of_2,
    sums_tile,
    threads_of,
)
from .settings import Plan

REGISTERS_PER_SM = 65536
TILE_BYTES = 8192  # of each tensor, on a multiprocessor with two programs
THREADS_PER_SM = 256  # with more, a thread has fewer than 255 registers
# Elements of a tile that a thread has registers for.
THREAD_ELEMENTS = 32
THREAD_ELEMENTS_ACTIVATION = 16
FEWEST_STAGES = 3  # with fewer, nothing is prefetched
NARROWEST_TILE = 256  # columns


def applies(problem: Problem) -> bool:
    """Whether programs all over the GPU can share rows. ``finish`` checks that they all run at once."""
    if problem.direction == "forward" or problem.computes_in_fp64:
        return False
    return problem.device.is_nvidia or problem.device.arch == "interpreter"


def rule(problem: Problem) -> Plan:
    """The plan of a plain norm where the table has no entry: small programs, one row at a time (experiment BG-03)."""
    return Plan(
        regime="grid",
        block_rows=1,
        block_cols=min(TILE_BYTES // problem.dtype.itemsize, next_power_of_2(problem.n_cols)),
        num_warps=4,
        programs_per_sm=2,
        num_stages=4,
        pipeline_depth=2,
        reason=f"a row of {problem.n_cols} columns is shared by programs all over the GPU, two on a multiprocessor: "
        "one computes while the other waits",
    )


def one_warp(problem: Problem) -> Plan:
    """Programs of one warp, which need not synchronize their warps (experiment BG-04)."""
    return Plan(
        regime="grid",
        block_rows=1,
        block_cols=TILE_BYTES // 4 // problem.dtype.itemsize,
        num_warps=1,
        programs_per_sm=8,
        num_stages=3,
        pipeline_depth=2,
        reason="a grid of programs with one warp, because a third column sum takes registers",
    )


def with_options(plan: Plan, problem: Problem) -> Plan:
    """Tiles so small that a thread has registers for them, and that FEWEST_STAGES fit in shared memory."""
    plain = problem.activation is None
    per_thread = THREAD_ELEMENTS if plain else THREAD_ELEMENTS_ACTIVATION
    room = per_thread * min(threads_of(plan, problem), THREADS_PER_SM // plan.programs_per_sm)
    block_cols = plan.block_cols
    while block_cols > NARROWEST_TILE and (
        block_cols > room or _most_stages(plan, problem, block_cols) < FEWEST_STAGES
    ):
        block_cols //= 2
    if block_cols == plan.block_cols:
        return plan
    return plan.adapted(
        "smaller tiles, so that they fit in registers and can be prefetched", block_cols=block_cols
    )


def finish(plan: Plan, problem: Problem, forced: bool = False) -> Plan:
    """The plan with parts of nearly one width, groups that share the rows, and registers for all programs at once.

    Looped where the programs cannot all run at once.
    """
    if not _fits(plan, problem, forced):
        return multipass.finish(multipass.rule(problem), problem, forced)
    if plan.block_rows != 1:
        raise ValueError(f"block_rows must be 1 in a grid; got {plan.block_rows}")
    groups = plan.n_programs or most_groups(plan, problem)
    registers = REGISTERS_PER_SM // (threads_of(plan, problem) * plan.programs_per_sm) // 8 * 8
    part_cols = _part_cols(plan, problem)
    finished = dataclasses.replace(
        plan,
        part_cols=part_cols,
        block_parts=next_power_of_2(ceil_div(problem.n_cols, part_cols)),
        num_stages=max(1, min(plan.num_stages, _most_stages(plan, problem, plan.block_cols))),
        n_programs=max(1, min(groups, problem.n_rows)),
        maxnreg=registers if registers < 255 else 0,
    )
    return dataclasses.replace(finished, sums_tile=sums_tile(finished, problem))


def _fits(plan: Plan, problem: Problem, forced: bool) -> bool:
    """Whether all programs run at once, and their messages and partial sums fit in PARTIAL_SUM_BYTES."""
    groups = most_groups(plan, problem)
    if not applies(problem) or groups == 0:
        return False
    n_parts = ceil_div(problem.n_cols, _part_cols(plan, problem))
    if problem.device.arch == "interpreter":
        return n_parts == 1  # its programs run one after another: none can wait for another
    # In the mode ``batch_invariant`` the number of rows must not decide. Messages take little beside dx: 8 bytes for
    # some hundred columns.
    message_bytes = 0 if problem.batch_invariant else 8 * problem.n_rows * n_parts
    sum_bytes = 4 * groups * problem.n_cols * problem.n_column_sums
    return message_bytes + sum_bytes <= PARTIAL_SUM_BYTES and (forced or n_parts > 1)


def most_groups(plan: Plan, problem: Problem) -> int:
    """How many groups of programs, each with whole rows, run at once."""
    n_parts = ceil_div(problem.n_cols, _part_cols(plan, problem))
    return problem.device.n_sms * plan.programs_per_sm // n_parts


def _part_cols(plan: Plan, problem: Problem) -> int:
    """Columns of one part: a multiple of 16, so that every part begins with a 16-byte access."""
    n_parts = ceil_div(problem.n_cols, plan.block_cols)
    return min(plan.block_cols, ceil_div(problem.n_cols, 16 * n_parts) * 16)


def _most_stages(plan: Plan, problem: Problem, block_cols: int) -> int:
    """Tiles are loaded twice: for the sums, and ``pipeline_depth`` rows later for the result."""
    return most_stages(plan, problem, plan.block_rows * block_cols, loads=2)
