"""Regimes looped and split: a row is loaded in chunks, once for its statistics and again for its result.

    applies to     every width
    looped         one program for each row
    split          few rows of great width: several programs for each row; a second kernel merges their statistics

The number of rows decides between the two. Within a regime it changes only ``part_cols`` and ``n_programs``, which no
kernel is compiled for. The order in which a row is summed follows from ``part_cols``, so in the mode
``rownorm.batch_invariant`` every row is divided in the same way.
"""

from __future__ import annotations

import dataclasses

from ..problem import Problem
from . import resident
from .capacity import ceil_div, chunks_of, most_programs, sums_tile
from .settings import Plan

CHUNK_COLS = {"forward": 4096, "backward": 2048}  # half as many in fp64
THREADS = {"forward": 512, "backward": 256}
# Forward: a row that fills at most so many chunks has a kernel that loads them all at once (experiment FM-04).
FULL_CHUNKS = 4
SPLIT_COLS = 16384  # narrower rows are not worth a second kernel, however few there are
MOST_PARTS = 512  # of a row
PROGRAMS_PER_SM = 4  # that few rows are split for
# In the mode ``batch_invariant``: enough to spread few rows over a GPU. With more, many rows would take longer: each
# part is a program, which loads the sums of all parts.
BATCH_INVARIANT_PARTS = 16
# Forward: the second load of rows that fill their chunks, up to this width, hits L1. Other rows take 1 to 2% longer on
# an H200 unless their results are the first to leave L2.
L1_COLS = 8192


def rule(problem: Problem) -> Plan:
    """The plan of rows that no other regime has registers for."""
    return Plan(
        regime="looped",
        block_rows=1,
        block_cols=CHUNK_COLS[problem.direction] // (2 if problem.computes_in_fp64 else 1),
        num_warps=THREADS[problem.direction] // problem.device.warp_size,
        programs_per_sm=8,
        reason=f"a row of {problem.n_cols} columns is reloaded in chunks, because it does not fit in registers",
    )


def with_residual(plan: Plan, problem: Problem) -> Plan:
    """Forward: a row that fits in registers is not reloaded if its residual would be, too (experiment RES-08)."""
    return resident.rule(problem) if resident.applies(problem) else plan


def with_options(plan: Plan, problem: Problem) -> Plan:
    """Forward: a row that fits in registers is not reloaded if a pre_bias would be, too (experiment FR-08).

    Except a row that fills few chunks: they are loaded at once, with the pre_bias (experiment FM-04).
    """
    if not problem.pre_bias or full_chunks(plan, problem) or not resident.applies(problem):
        return plan
    one_row = resident.rule(problem)
    return one_row.adapted(
        "half the warps and prefetched parameters, because of the pre_bias",
        num_warps=max(1, one_row.num_warps // 2),
        prefetch_parameters=True,
    )


def full_chunks(plan: Plan, problem: Problem) -> int:
    """How many chunks a row has, if it fills them and they are few; else 0. A kernel is compiled for the number."""
    chunks, rest = divmod(problem.n_cols, plan.block_cols)
    return chunks if rest == 0 and chunks <= FULL_CHUNKS else 0


def finish(plan: Plan, problem: Problem, forced: bool = False) -> Plan:
    """The plan with its parts, and in backward the programs that share the rows. ``forced``: the regime stays."""
    forward = problem.direction == "forward"
    regime, part_cols, reason = plan.regime, plan.part_cols, plan.reason
    if not part_cols:
        splits = regime == "split" if forced else _splits(plan, problem)
        part_cols = (
            _part_cols(plan, problem) if splits else chunks_of(plan, problem) * plan.block_cols
        )
        if part_cols < problem.n_cols:
            regime = "split"
            reason += f"; several programs share a row, because {_why_split(problem)}"
    _check_parts(plan, part_cols, problem)
    chunks = full_chunks(plan, problem) if forward and regime == "looped" else 0
    finished = dataclasses.replace(
        plan,
        regime=regime,
        chunks=chunks,
        part_cols=part_cols,
        # All that a row can have, because the number of rows decides how many it has and must compile nothing.
        block_parts=MOST_PARTS if part_cols < problem.n_cols else 1,
        reason=reason,
        n_programs=plan.n_programs if forward or plan.n_programs else _programs(plan, problem),
    )
    if forward:
        is_reloaded_from_l1 = regime == "looped" and 0 < chunks * plan.block_cols <= L1_COLS
        return dataclasses.replace(finished, evict_first=not is_reloaded_from_l1)
    return dataclasses.replace(finished, sums_tile=sums_tile(finished, problem))


def _splits(plan: Plan, problem: Problem) -> bool:
    """Whether several programs may share a row. Not if one loads all its chunks at once: that is another kernel."""
    at_once = problem.direction == "forward" and full_chunks(plan, problem)
    return problem.n_cols > SPLIT_COLS and not at_once


def _why_split(problem: Problem) -> str:
    if problem.batch_invariant:
        return "a row is divided in the same way in any batch, and few rows would not fill the GPU"
    return "few rows would not fill the GPU"


def _part_cols(plan: Plan, problem: Problem) -> int:
    """Columns of one part of a row, a multiple of block_cols: enough parts to fill the GPU."""
    chunks = chunks_of(plan, problem)
    if problem.batch_invariant:
        wanted = BATCH_INVARIANT_PARTS
    else:
        wanted = max(1, PROGRAMS_PER_SM * problem.device.n_sms // max(1, problem.n_rows))
    return ceil_div(chunks, min(chunks, MOST_PARTS, wanted)) * plan.block_cols


def _programs(plan: Plan, problem: Problem) -> int:
    """Backward: programs that share the rows, for each chunk of columns."""
    programs = ceil_div(plan.programs_per_sm * problem.device.n_sms, chunks_of(plan, problem))
    return max(1, min(programs, problem.n_rows, most_programs(problem)))


def _check_parts(plan: Plan, part_cols: int, problem: Problem) -> None:
    """Only forced settings can fail this."""
    if part_cols % plan.block_cols:
        raise ValueError(
            f"part_cols must be a multiple of block_cols, {plan.block_cols}; got {part_cols}"
        )
    if ceil_div(problem.n_cols, part_cols) > MOST_PARTS:
        raise ValueError(
            f"part_cols must make at most {MOST_PARTS} parts of {problem.n_cols} columns; got {part_cols}"
        )
