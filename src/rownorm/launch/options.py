"""What options change in a plan that was made for a plain norm: they take registers from the rows that are held."""

from __future__ import annotations

import dataclasses

from .problem import Plan, Problem, Regime
from .rules import (
    GRID_TILE_BYTES,
    MOST_PROGRAMS,
    RESIDENT_COLS,
    blocks,
    chunks_of,
    filled_chunks,
    from_rules,
    in_a_grid,
    in_chunks,
    most_stages,
    next_power_of_2,
    warps,
)

# Forward: bytes of a row and its residual that a thread of a cluster holds, by the warps there are; and if it loads
# ahead.
HELD_BYTES = {8: 384, 16: 256}
HELD_AHEAD = 128
EARLY_COLS = 4096  # up to which weights are loaded early beside a residual
# Backward: elements a thread has room for with an activation, with a third sum, with both; in 32 bits and in 16.
ROOM = ((24, 24, 12), (40, 28, 16))
READ_AT_ONCE = 64  # bytes of dy that a thread holds beside what it made of them
BUSY = 24  # elements of a thread that keep it from loading, with an activation of centred rows
GRID_ROOM = (16, 32)  # in a grid: with an activation, and without
FEWEST_STAGES = 3  # with fewer, nothing is loaded ahead
NARROWEST_PART = 256  # columns of a part of a row


def with_options(plan: Plan, problem: Problem) -> Plan:
    """What was planned for a norm with or without a residual, made fit for its other options."""
    if problem.direction == "forward":
        return _with_pre_bias(plan, problem) if problem.pre_bias else plan
    if plan.regime in ("looped", "split"):
        return plan
    return _in_smaller_tiles(plan, problem) if plan.regime == "grid" else _backward(plan, problem)


def with_residual(plan: Plan, problem: Problem) -> Plan:
    """Forward: beside a residual, wide rows leave no registers for weights, and take a cluster more programs."""
    if problem.direction == "backward" or problem.residual_dtype is None:
        return plan
    if plan.regime in ("looped", "split"):
        return _held(plan, problem)
    if plan.regime != "cluster":
        return dataclasses.replace(
            plan, prefetch_parameters=plan.prefetch_parameters and problem.n_cols <= EARLY_COLS
        )
    plan = dataclasses.replace(plan, programs_per_sm=1, maxnreg=0)
    bytes_held = problem.dtype.itemsize + problem.residual_dtype.itemsize
    # Of this row and, as much again, of the next.
    held_by_thread = 1 << (HELD_AHEAD // bytes_held).bit_length() - 1
    threads = 16 * problem.device.warp_size
    cluster = next_power_of_2(-(-problem.n_cols // (held_by_thread * threads)))
    block_cols = 16 // problem.dtype.itemsize * threads
    if problem.device.resident(cluster):
        return dataclasses.replace(
            plan, block_cols=block_cols, num_warps=16, cluster_size=cluster, num_stages=2
        )
    # Wider rows are not loaded ahead. Uncentred, they are best held by few threads with many registers.
    for num_warps, registers in ((16, 0),) if problem.center else ((8, 128), (16, 0)):
        wide = dataclasses.replace(
            plan,
            block_cols=block_cols * num_warps // 16,
            num_warps=num_warps,
            cluster_size=MOST_PROGRAMS[problem.direction],
            num_stages=1,
            maxnreg=registers,
        )
        held_cols = wide.block_cols * chunks_of(wide, problem)
        if held_cols * bytes_held <= HELD_BYTES[num_warps] * num_warps * problem.device.warp_size:
            return wide
    return in_chunks(problem)


def _held(plan: Plan, problem: Problem) -> Plan:
    """Forward: a row that one program could hold is read again only where that is all there is to read again."""
    return from_rules(problem) if problem.n_cols <= RESIDENT_COLS[0] else plan


def _with_pre_bias(plan: Plan, problem: Problem) -> Plan:
    """Forward: rows that can be held are, by few threads, with weights that come along, unless their few chunks are
    loaded at once; a limit of registers was found without a pre_bias; and of smaller tiles, less of it is loaded ahead.
    """
    if plan.regime in ("looped", "split"):
        if filled_chunks(plan, problem):
            return plan
        held = _held(plan, problem)
        if held.regime in ("looped", "split"):
            return held
        return dataclasses.replace(
            held, num_warps=max(1, held.num_warps // 2), prefetch_parameters=True
        )
    if plan.regime != "cluster":
        return plan
    halved = plan.block_cols > _narrowest(plan, problem)
    block_cols = plan.block_cols // 2 if halved else plan.block_cols
    return dataclasses.replace(plan, maxnreg=0, block_cols=block_cols)


def _narrowest(plan: Plan, problem: Problem) -> int:
    """Columns of a tile with 16 bytes for every thread: with fewer, accesses are narrow."""
    return 16 // problem.dtype.itemsize * plan.num_warps * problem.device.warp_size


def _backward(plan: Plan, problem: Problem) -> Plan:
    """An activation takes time in every lane, and with it or a third sum a thread holds fewer elements."""
    activates, sums = problem.activation is not None, problem.n_column_sums > 2
    if not (activates or sums):
        return plan
    if activates and plan.regime == "resident":
        plan = _without_spare_lanes(plan, problem)
    threads = plan.num_warps * problem.device.warp_size
    held_cols = plan.block_cols * chunks_of(plan, problem)
    is_busy = activates and problem.center and 2 * held_cols > BUSY * threads
    if is_busy and not sums and plan.block_rows == 2:
        # While one thread computes exponentials, another one loads: one row in twice as many programs.
        twice = 2 * plan.programs_per_sm
        return dataclasses.replace(plan, regime="resident", block_rows=1, programs_per_sm=twice)
    if sums_rows(plan, problem):
        return plan
    room = ROOM[problem.dtype.itemsize <= 2][activates + 2 * sums - 1] * threads
    if not problem.center:
        room = min(2 * room, 40 * threads)
    if plan.block_rows * held_cols <= room:
        return plan
    if plan.block_rows > 1:
        block_rows = plan.block_rows
        while block_rows > 1 and block_rows * held_cols > room:
            block_rows //= 2
        regime: Regime = "tile" if block_rows > 1 else "resident"
        return dataclasses.replace(plan, block_rows=block_rows, regime=regime)
    if plan.regime == "cluster":
        # Larger clusters leave multiprocessors idle: one program, if it has the registers, else a grid.
        if activates:
            return _in_smaller_tiles(in_a_grid(problem), problem)
        if problem.dtype.itemsize <= 2 and problem.n_cols <= RESIDENT_COLS[1]:
            return Plan("resident", 1, 2048, 8, num_stages=3, source=plan.source)
        # Of programs with one warp, which wait for nobody but each other.
        block_cols = GRID_TILE_BYTES // 4 // problem.dtype.itemsize
        one = Plan("grid", 1, block_cols, 1, programs_per_sm=8, num_stages=3, pipeline_depth=2)
        return _in_smaller_tiles(one, problem)
    if threads < 256:
        programs_per_sm = max(1, plan.programs_per_sm // 2)
        return dataclasses.replace(
            plan, num_warps=2 * plan.num_warps, programs_per_sm=programs_per_sm
        )
    alone = dataclasses.replace(plan, regime="cluster")
    wider = _with_more_programs(alone, problem, room)
    return wider or _in_smaller_tiles(in_a_grid(problem), problem)


def _without_spare_lanes(plan: Plan, problem: Problem) -> Plan:
    """Tiles that a row fills, where many lanes of those planned would lie beyond it."""
    if 4 * plan.block_cols * chunks_of(plan, problem) < 5 * problem.n_cols:
        return plan
    block_cols, chunks = blocks(problem)
    num_warps = warps(block_cols * chunks, block_cols, problem)
    programs_per_sm = max(1, 8 // num_warps)
    return dataclasses.replace(
        plan, block_cols=block_cols, num_warps=num_warps, programs_per_sm=programs_per_sm
    )


def _with_more_programs(plan: Plan, problem: Problem, room: int) -> Plan | None:
    """A cluster so large that a program's share of a row is at most ``room`` columns, if there are such clusters."""
    block_cols = plan.block_cols
    while block_cols > room and block_cols > _narrowest(plan, problem):
        block_cols //= 2
    plan = dataclasses.replace(plan, block_cols=block_cols)
    while plan.block_cols * chunks_of(plan, problem) > room:
        plan = dataclasses.replace(plan, cluster_size=2 * plan.cluster_size)
        if block_cols > room or problem.device.resident(plan.cluster_size) == 0:
            return None
    return plan


def sums_rows(plan: Plan, problem: Problem) -> bool:
    """Backward: whether a thread has its columns of all rows of a tile, so that it keeps one sum for all of them."""
    threads = plan.num_warps * problem.device.warp_size
    return plan.block_rows > 1 and plan.block_cols * problem.dtype.itemsize >= 16 * threads


def reads_together(plan: Plan, problem: Problem) -> bool:
    """Backward: whether a thread has registers for all it has of ``dy`` in a turn, as it is read, beside its sums."""
    threads = plan.num_warps * problem.device.warp_size
    held = plan.block_rows * plan.chunks * plan.block_cols * problem.dtype.itemsize
    fits = held <= READ_AT_ONCE * threads and not problem.computes_in_fp64
    few_sums = problem.n_column_sums < 3 or sums_rows(plan, problem)
    return fits and few_sums


def _in_smaller_tiles(plan: Plan, problem: Problem) -> Plan:
    """A grid: tiles that a thread has registers for, and that can be loaded ahead."""
    light = problem.activation is None
    threads = plan.num_warps * problem.device.warp_size
    # More than 256 threads on an SM share its registers.
    room = GRID_ROOM[light] * min(threads, 256 // plan.programs_per_sm)
    while plan.block_cols > NARROWEST_PART and (
        plan.block_cols > room or most_stages(plan, problem) < FEWEST_STAGES
    ):
        plan = dataclasses.replace(plan, block_cols=plan.block_cols // 2)
    return plan
