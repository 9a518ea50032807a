"""Regime cluster: the programs of a thread block cluster share a row and exchange its sums through shared memory.

    applies to     rows too wide for one program, on NVIDIA GPUs with clusters (sm_90 and later); not in fp64
    forward        one cluster for each row, or persistent clusters that prefetch the next row (num_stages 2)
    backward       persistent clusters, with tiles in flight in shared memory

Where a GPU has no such clusters, forward is looped and backward runs in a grid.
"""

from __future__ import annotations

import dataclasses

import torch

from ..problem import Problem
from . import grid, multipass, resident
from .capacity import (
    ceil_div,
    chunks_of,
    next_power_of_2,
    previous_power_of_2,
    room_for_options,
    stages,
    threads_of,
    vector_cols,
    with_tile_loads,
)
from .settings import Plan

# Bytes of a row that one program has registers for.
SHARE_BYTES = {"forward": 32768, "backward": 8192}
# Most programs of a cluster in plans of the rules. Forward: the most that the hardware allows. Backward: large clusters
# leave multiprocessors idle, up to 20 of 132, so the rules run wider rows in a grid (experiment BG-03). Entries of the
# table may have larger clusters: 8 programs for 16384 columns (experiment BC-06).
MOST_PROGRAMS = {"forward": 16, "backward": 4}
FORWARD_WARPS = 16  # of a program
# Forward with a residual: bytes of a row and its residual that a thread has registers for, by the warps of a program. A
# program that prefetches has two rows in registers, so each of them may take THREAD_BYTES_PREFETCHED.
THREAD_BYTES = {8: 384, 16: 256}
THREAD_BYTES_PREFETCHED = 128
KEPT_NUMBERS = 8  # forward: of weight, and as many of bias, that a thread has registers for
MOST_SENDERS = 32  # backward: MAX_SENDERS of kernels/exchange/cluster.py, which has so many slots
SENT_COLUMNS = 4  # backward: columns of a thread in each tile whose warps send their own sums


def applies(problem: Problem) -> bool:
    """Whether a cluster has registers for a row."""
    widest = MOST_PROGRAMS[problem.direction] * SHARE_BYTES[problem.direction]
    row_bytes = problem.n_cols * problem.dtype.itemsize
    return bool(problem.device.clusters) and not problem.computes_in_fp64 and row_bytes <= widest


def rule(problem: Problem) -> Plan:
    """The plan of a plain norm where the table has no entry: the smallest cluster with registers for a row."""
    share = SHARE_BYTES[problem.direction] // problem.dtype.itemsize
    size = min(MOST_PROGRAMS[problem.direction], next_power_of_2(ceil_div(problem.n_cols, share)))
    reason = (
        f"a row of {problem.n_cols} columns fits in the registers of a cluster of {size} programs"
    )
    if problem.direction == "forward":
        # The next row is prefetched (experiment FC-05).
        return Plan(
            regime="cluster",
            block_rows=1,
            block_cols=min(4096, share),
            num_warps=FORWARD_WARPS,
            cluster_size=size,
            num_stages=2,
            reason=reason,
        )
    # Two programs of 4 warps on a multiprocessor, tiles of 512 columns (experiment BC-05).
    return Plan(
        regime="cluster",
        block_rows=1,
        block_cols=512,
        num_warps=4,
        cluster_size=size,
        programs_per_sm=2,
        num_stages=3,
        reason=f"{reason}, two on a multiprocessor: one computes while the other waits",
    )


def with_residual(plan: Plan, problem: Problem) -> Plan:
    """Forward: a residual takes registers, so more programs share a row and prefetch the next (experiment RES-01)."""
    assert problem.residual_dtype is not None
    element_bytes = problem.dtype.itemsize + problem.residual_dtype.itemsize
    per_thread = previous_power_of_2(THREAD_BYTES_PREFETCHED // element_bytes)
    threads = FORWARD_WARPS * problem.device.warp_size
    size = next_power_of_2(ceil_div(problem.n_cols, per_thread * threads))
    if problem.device.max_clusters(size):
        return plan.adapted(
            f"{size} programs per row, so that the residual and the next row fit in registers",
            block_cols=16 // problem.dtype.itemsize * threads,
            num_warps=FORWARD_WARPS,
            cluster_size=size,
            programs_per_sm=1,
            num_stages=2,
            maxnreg=0,
        )
    # Wider rows are not prefetched. RMSNorm is fastest with few threads that have many registers.
    few_threads = () if problem.center else ((8, 128),)
    for num_warps, maxnreg in (*few_threads, (FORWARD_WARPS, 0)):
        threads = num_warps * problem.device.warp_size
        wide = plan.adapted(
            "the largest cluster, so that the residual fits in registers; the next row does not",
            block_cols=16 // problem.dtype.itemsize * threads,
            num_warps=num_warps,
            cluster_size=MOST_PROGRAMS["forward"],
            programs_per_sm=1,
            num_stages=1,
            maxnreg=maxnreg,
        )
        cols = wide.block_cols * chunks_of(wide, problem)
        if cols * element_bytes <= THREAD_BYTES[num_warps] * threads:
            return wide
    return multipass.rule(problem)


def with_options(plan: Plan, problem: Problem) -> Plan:
    """A pre_bias in forward, an activation or a third column sum in backward."""
    if problem.direction == "forward":
        return _with_pre_bias(plan, problem) if problem.pre_bias else plan
    activates = problem.activation is not None
    if not (activates or problem.third_sum):
        return plan
    if plan.block_cols * chunks_of(plan, problem) <= room_for_options(plan, problem):
        return plan
    # Not a larger cluster, which would leave more multiprocessors idle (experiment BG-03). ``widened`` makes clusters
    # from a plan of one program, so they stay small.
    if activates:
        return grid.with_options(grid.rule(problem), problem)
    return _without_clusters(plan, problem)


def _with_pre_bias(plan: Plan, problem: Problem) -> Plan:
    """Forward: smaller tiles, because a tile of the pre_bias is in registers beside the row.

    No limit of registers: those of the table were found without a pre_bias.
    """
    can_halve = plan.block_cols > vector_cols(plan, problem)
    return plan.adapted(
        "smaller tiles without a register limit, because the pre_bias takes registers",
        maxnreg=0,
        block_cols=plan.block_cols // 2 if can_halve else plan.block_cols,
    )


def _without_clusters(plan: Plan, problem: Problem) -> Plan:
    """Backward with a third column sum: one program if it has registers for a row, else a grid (experiment BG-04).

    The resident plan is decided here, not by ``resident.rule``: that is the rule for a plain norm, and its plan would
    have to be adapted to the third sum once more, which can lead back to a cluster (``widened``).
    """
    if problem.dtype.itemsize <= 2 and problem.n_cols <= 8192:
        return Plan(
            regime="resident",
            block_rows=1,
            block_cols=2048,
            num_warps=8,
            num_stages=3,
            source=plan.source,
            second=plan.second,
            reason=f"{plan.reason}; adapted: one program per row, because a third column sum takes registers",
        )
    return grid.with_options(grid.one_warp(problem), problem)


def widened(plan: Plan, problem: Problem) -> Plan:
    """Backward with options that one program has no registers for: a cluster (experiment OPT-01), else a grid."""
    plan = resident.without_idle_lanes(plan, problem)
    room = room_for_options(plan, problem)
    block_cols, size = plan.block_cols, 1
    while block_cols > room and block_cols > vector_cols(plan, problem):
        block_cols //= 2
    while block_cols * ceil_div(problem.n_cols, size * block_cols) > room:
        size *= 2
        if block_cols > room or problem.device.max_clusters(size) == 0:
            return grid.with_options(grid.rule(problem), problem)
    return plan.adapted(
        f"{size} programs per row, because the options take registers",
        regime="cluster",
        block_cols=block_cols,
        cluster_size=size,
    )


def finish(plan: Plan, problem: Problem, forced: bool = False) -> Plan:
    """The plan with chunks, stages, variants of the kernel, and the clusters that share the rows; in another
    regime without clusters.
    """
    forward = problem.direction == "forward"
    if not _fits(plan, problem, forced):
        if forward:
            return multipass.finish(multipass.rule(problem), problem, forced)
        return grid.finish(grid.with_options(grid.rule(problem), problem), problem, forced)
    chunks = chunks_of(plan, problem)
    if not forward:
        clusters = problem.device.max_clusters(plan.cluster_size, plan.programs_per_sm)
        finished = dataclasses.replace(
            plan,
            chunks=chunks,
            num_stages=stages(plan, problem),
            n_programs=plan.n_programs or max(1, min(clusters, problem.n_rows)),
            send_per_warp=_sends_per_warp(plan, problem),
        )
        return with_tile_loads(finished, problem)
    num_stages = max(1, min(plan.num_stages, 2))
    prefetches, adds = num_stages > 1, problem.residual_dtype is not None
    return dataclasses.replace(
        plan,
        chunks=chunks,
        num_stages=num_stages,
        fast_rstd=_fast_rstd(problem),
        n_programs=_clusters(plan, problem) if prefetches else max(1, problem.n_rows),
        # On an H200, prefetched rows take a fifth longer without it, except beside a residual.
        evict_first=prefetches and not adds,
        # No hint where rows of two tensors are prefetched: with one, LayerNorm of 131072 columns takes a sixth longer.
        load_eviction="" if prefetches and adds else "evict_last",
        pack_x=_packs(problem.dtype, plan, problem),
        pack_residual=_packs(problem.residual_dtype, plan, problem),
        vector_width=_vector_width(plan, problem),
        kept_chunks=_kept_chunks(plan, problem, chunks) if prefetches else 0,
    )


def _fits(plan: Plan, problem: Problem, forced: bool) -> bool:
    """Whether the GPU runs such clusters, and a program has registers for its columns."""
    if problem.computes_in_fp64:
        return False
    if forced:
        return True
    share = SHARE_BYTES[problem.direction] // problem.dtype.itemsize
    # SHARE_BYTES limits plans of the rules. A plan whose source is the table was measured, or adapted from such a plan.
    in_registers = plan.source != "rules" or problem.n_cols <= share * plan.cluster_size
    return in_registers and problem.device.max_clusters(plan.cluster_size) > 0


def _fast_rstd(problem: Problem) -> bool:
    """Forward: whether rstd is computed without calls, which take registers that a residual needs (experiment ST-10).

    With a pre_bias or an activation beside the residual it is computed with calls, because the compiler spills
    registers in the code without them.
    """
    plain = not problem.pre_bias and problem.activation is None
    return plain and problem.residual_dtype is not None


def _packs(dtype: torch.dtype | None, plan: Plan, problem: Problem) -> bool:
    """Forward: whether two numbers of this dtype are in one register. A thread has pairs of them, on NVIDIA GPUs."""
    pairs = plan.block_cols >= 2 * threads_of(plan, problem)
    return dtype is not None and dtype.itemsize == 2 and pairs and problem.device.is_nvidia


def _vector_width(plan: Plan, problem: Problem) -> int:
    """Forward: neighboring columns of one thread, which it adds up first: 16 bytes of x, or all it has."""
    per_thread = plan.block_cols // threads_of(plan, problem)
    return max(1, min(16 // problem.dtype.itemsize, per_thread))


def _kept_chunks(plan: Plan, problem: Problem, chunks: int) -> int:
    """Forward with prefetched rows: how many chunks of weight and bias stay in registers, if there are both.

    Loading both for every row is twice the traffic of the row, more than L2 delivers. So the first chunks stay, 8
    numbers of each for a thread, in a plain norm: elsewhere something else needs these registers.
    """
    if problem.residual_dtype is not None or problem.pre_bias or problem.activation is not None:
        return 0
    fitting = KEPT_NUMBERS * threads_of(plan, problem) // plan.block_cols
    return min(chunks, max(1, fitting))


def _sends_per_warp(plan: Plan, problem: Problem) -> bool:
    """Backward: whether warps send their own sums to the cluster, without waiting for the program's other warps.

    With one warp there is no synchronization to save, and the slots limit the number of senders. Each thread adds up
    at least SENT_COLUMNS columns of a tile first.
    """
    return (
        plan.cluster_size > 1
        and plan.num_warps > 1
        and plan.cluster_size * plan.num_warps <= MOST_SENDERS
        and plan.block_cols >= SENT_COLUMNS * threads_of(plan, problem)
    )


def _clusters(plan: Plan, problem: Problem) -> int:
    """Forward: persistent clusters. As many as run at once, or up to 5% fewer if then all have as many rows, which is
    faster (experiment FC-09).
    """
    if plan.n_programs:
        return plan.n_programs
    n_rows = problem.n_rows
    most = problem.device.max_clusters(plan.cluster_size, plan.programs_per_sm)
    even = (n for n in range(most, most * 19 // 20, -1) if n_rows % n == 0)
    return max(1, min(next(even, most), n_rows))
