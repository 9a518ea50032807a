"""Regimes tile and resident: one program has whole rows in registers, several rows (tile) or one (resident).

    applies to     rows of up to 16384 columns in forward, 8192 in backward; half as many in fp64
    forward        one program for each tile: one load, one store
    backward       programs that go through many tiles, with tiles in flight in shared memory

The number of rows changes only ``n_programs``, which no kernel is compiled for.
"""

from __future__ import annotations

import dataclasses

from ..problem import Problem
from . import compiler, unaligned
from .capacity import (
    MOST_REGISTERS,
    PREFETCH_COLS,
    RESIDENT_COLS,
    aligned_cols,
    ceil_div,
    chunks_of,
    has_registers,
    is_unaligned,
    most_programs,
    next_power_of_2,
    room_for_options,
    stages,
    sums_rows,
    threads_of,
    with_tile_loads,
)
from .settings import Plan

TILE_ELEMENTS = {"forward": 2048, "backward": 4096}  # elements of a tile of several short rows
# Backward: 256 threads with 255 registers each, on one multiprocessor (experiment BR-04).
MOST_THREADS = {"forward": 1024, "backward": 256}
ELEMENTS_PER_THREAD = 16
MOST_CHUNKS = 8  # tiles that cover a row whose width is no power of two
# Tiles in flight. In backward fewer where shared memory is too small for them; in forward no rule gains from a second
# (experiment MOD-01).
NUM_STAGES = {"forward": 1, "backward": 5}
# One program computes so few tiles, which saves the kernel that adds up column sums (experiment HST-01).
FEW_TILES = 8
# Backward of 16-bit and 32-bit rows (experiments BR-18, BR-19): narrower rows are as fast with the plans of 32 bits.
NARROW_MIXED_COLS = 512
MIXED_ELEMENTS = 4  # of a tile, for every thread
# By threads of a program: programs on a multiprocessor, stages.
MIXED_PROGRAMS = {64: (6, 3), 128: (2, 4), 256: (1, 4)}
# Backward of LayerNorm with an activation: with more elements per thread, too few loads are in flight.
BUSY_ELEMENTS = 24


def applies(problem: Problem) -> bool:
    """Whether one program has registers for a row."""
    width = 2 if problem.computes_in_fp64 else 1
    return next_power_of_2(problem.n_cols) * width <= RESIDENT_COLS[problem.direction]


def rule(problem: Problem) -> Plan:
    """The plan of a plain norm where the table has no entry."""
    if is_unaligned(problem):
        return unaligned.rule(problem)
    if problem.direction == "backward" and _fits_one_warp(problem):
        return _with_limit(_one_warp(problem), problem)  # experiment BR-11
    return _with_limit(_within_registers(several_rows(problem), problem), problem)


def several_rows(problem: Problem) -> Plan:
    """Tiles of about TILE_ELEMENTS elements; one row if it has that many."""
    width = 2 if problem.computes_in_fp64 else 1
    block_cols, chunks = tiling(problem)
    elements = TILE_ELEMENTS[problem.direction] // width
    return _tile(problem, max(1, elements // next_power_of_2(block_cols * chunks)))


def one_row(problem: Problem) -> Plan:
    """Tiles of one row."""
    return _tile(problem, 1)


def _tile(problem: Problem, block_rows: int) -> Plan:
    width = 2 if problem.computes_in_fp64 else 1
    block_cols, chunks = tiling(problem)
    num_warps = warps(block_rows * block_cols * chunks * width, block_rows * block_cols, problem)
    return Plan(
        regime="tile" if block_rows > 1 else "resident",
        block_rows=block_rows,
        block_cols=block_cols,
        num_warps=num_warps,
        programs_per_sm=max(1, 8 // num_warps),
        num_stages=NUM_STAGES[problem.direction],
        reason=f"a row of {problem.n_cols} columns fits in the registers of one program",
    )


def _within_registers(plan: Plan, problem: Problem) -> Plan:
    """Fewer rows where a thread of an NVIDIA GPU has no registers for them (experiment SF-16)."""
    block_rows = plan.block_rows
    while block_rows > 1 and not has_registers(plan, problem, block_rows):
        block_rows //= 2
    if block_rows == plan.block_rows or not problem.device.is_nvidia:
        return plan
    return plan.adapted(
        "fewer rows per tile, because each row of a thread takes registers",
        regime="tile" if block_rows > 1 else "resident",
        block_rows=block_rows,
    )


def _with_limit(plan: Plan, problem: Problem) -> Plan:
    """A limit of 255 registers, which NVIDIA's compiler has anyway: if stated, it spills none to fit more programs on a
    multiprocessor (experiment SF-16).

    Backward starts no more of them there. In forward they are worth having, but in fp64, and with an activation and a
    pre_bias, they cost spills.
    """
    is_full = problem.computes_in_fp64 or (problem.activation is not None and problem.pre_bias)
    in_forward = plan.block_rows > 1 and is_full
    if not problem.device.is_nvidia or not (problem.direction == "backward" or in_forward):
        return plan
    return dataclasses.replace(plan, maxnreg=MOST_REGISTERS)


def _fits_one_warp(problem: Problem) -> bool:
    """Backward: whether a row gives every lane of one NVIDIA warp 16 or 32 bytes."""
    block_cols, chunks = tiling(problem)
    row_bytes = block_cols * chunks * problem.dtype.itemsize
    return problem.device.is_nvidia and not problem.computes_in_fp64 and row_bytes in (512, 1024)


def _one_warp(problem: Problem) -> Plan:
    block_cols, _ = tiling(problem)
    return Plan(
        regime="tile",
        block_rows=2048 // (block_cols * problem.dtype.itemsize),
        block_cols=block_cols,
        num_warps=1,
        programs_per_sm=8,
        num_stages=3,
        reason="a short row in a program of one warp, which synchronizes with no other warp",
    )


def applies_to_mixed(problem: Problem) -> bool:
    """Backward of 16-bit and 32-bit rows, with no residual or a 16-bit one: whether ``mixed_rule`` is fast for them."""
    return (
        problem.mixed
        and (problem.residual_dtype is None or problem.residual_dtype.itemsize == 2)
        and problem.n_cols > NARROW_MIXED_COLS
        and applies(problem)
        and not is_unaligned(problem)
    )


def mixed_rule(problem: Problem) -> Plan:
    """One row, with 4 elements of each tile in every thread.

    With more, a thread would load 16 bytes of both kinds of rows, which are 8 and 4 columns, and the compiler would
    move one kind through shared memory to the threads of the other (experiment BR-18).
    """
    threads = next_power_of_2(problem.n_cols) // ELEMENTS_PER_THREAD
    threads = min(threads, MOST_THREADS["backward"])
    programs_per_sm, num_stages = MIXED_PROGRAMS[threads]
    return Plan(
        regime="resident",
        block_rows=1,
        block_cols=MIXED_ELEMENTS * threads,
        num_warps=threads // problem.device.warp_size,
        programs_per_sm=programs_per_sm,
        num_stages=num_stages,
        reason="16-bit and 32-bit rows in one layout: 4 columns of a tile for every thread",
    )


def tiling(problem: Problem) -> tuple[int, int]:
    """(block_cols, chunks) that cover a row with few idle lanes (experiments FR-02, BR-06).

    5120 columns are 5 tiles of 1024, not one of 8192.
    """
    whole = next_power_of_2(problem.n_cols)
    # A tile gives every lane of a warp 16 bytes. With fewer, memory accesses are narrow.
    block_cols = max(whole // MOST_CHUNKS, 16 // problem.dtype.itemsize * problem.device.warp_size)
    if block_cols >= whole:
        return whole, 1
    chunks = ceil_div(problem.n_cols, block_cols)
    while chunks % 2 == 0 and 2 * block_cols <= compiler.widest_tile(problem):
        block_cols, chunks = 2 * block_cols, chunks // 2
    return block_cols, chunks


def warps(elements: int, tile_elements: int, problem: Problem) -> int:
    """16 elements per thread, as far as MOST_THREADS allow. Several tiles: 16 bytes of each for every thread."""
    threads = next_power_of_2(elements // ELEMENTS_PER_THREAD)
    if tile_elements < elements:
        threads = min(threads, tile_elements * problem.dtype.itemsize // 16)
    threads = min(threads, MOST_THREADS[problem.direction])
    return max(1, threads // problem.device.warp_size)


def with_residual(plan: Plan, problem: Problem) -> Plan:
    """Forward: wide rows and their residual leave no registers for prefetched parameters."""
    if not plan.prefetch_parameters or problem.n_cols <= PREFETCH_COLS:
        return plan
    return plan.adapted(
        "parameters not prefetched, because the residual takes their registers",
        prefetch_parameters=False,
    )


def with_options(plan: Plan, problem: Problem) -> Plan | None:
    """Backward: an activation or a third column sum takes registers, so a thread has fewer elements.

    None if one program has no registers for a row.
    """
    activates = problem.activation is not None
    if (
        problem.direction == "forward"
        or not (activates or problem.third_sum)
        or is_unaligned(problem)
    ):
        return plan
    plan = without_idle_lanes(plan, problem)
    threads = threads_of(plan, problem)
    cols = plan.block_cols * chunks_of(plan, problem)
    is_busy = activates and problem.center and 2 * cols > BUSY_ELEMENTS * threads
    if is_busy and not problem.third_sum and plan.block_rows == 2:
        return plan.adapted(
            "one row in twice as many programs: some load while others compute the activation",
            regime="resident",
            block_rows=1,
            programs_per_sm=2 * plan.programs_per_sm,
            maxnreg=0,  # so many programs fit only with fewer registers
        )
    is_measured = problem.device.arch == "sm_90" or not problem.device.is_nvidia
    is_narrow = aligned_cols(problem) * problem.dtype.itemsize < 16
    if activates and problem.third_sum and is_narrow and plan.block_rows > 1 and not is_measured:
        # Narrow accesses take registers for their addresses (experiment SF-16).
        return plan.adapted(
            f"half the rows per tile, because {_takers(problem)} registers",
            regime="tile" if plan.block_rows > 2 else "resident",
            block_rows=plan.block_rows // 2,
        )
    room = room_for_options(plan, problem)
    if sums_rows(plan, problem) or plan.block_rows * cols <= room:
        return plan
    if plan.block_rows > 1:
        block_rows = plan.block_rows
        while block_rows > 1 and block_rows * cols > room:
            block_rows //= 2
        fewer = plan.adapted(
            f"fewer rows per tile, because {_takers(problem)} registers",
            regime="tile" if block_rows > 1 else "resident",
            block_rows=block_rows,
        )
        # Rows of odd width take registers for more addresses (experiment SF-16).
        return _with_limit(fewer, problem) if problem.n_cols % 2 and not plan.maxnreg else fewer
    if threads < MOST_THREADS["backward"]:
        return plan.adapted(
            f"twice the warps, because {_takers(problem)} registers",
            num_warps=2 * plan.num_warps,
            programs_per_sm=max(1, plan.programs_per_sm // 2),
        )
    return None


def _takers(problem: Problem) -> str:
    """What takes registers, with its verb."""
    if problem.activation is None:
        return "a third column sum takes"
    if problem.third_sum:
        return "the activation and a third column sum take"
    return "the activation takes"


def without_idle_lanes(plan: Plan, problem: Problem) -> Plan:
    """Backward with an activation, resident: the rules' tiling, if the plan's has a quarter more lanes than columns."""
    if problem.activation is None or plan.regime != "resident":
        return plan
    if 4 * plan.block_cols * chunks_of(plan, problem) < 5 * problem.n_cols:
        return plan
    block_cols, chunks = tiling(problem)
    num_warps = warps(block_cols * chunks, block_cols, problem)
    return plan.adapted(
        "fewer idle lanes, because each computes the activation",
        block_cols=block_cols,
        num_warps=num_warps,
        programs_per_sm=max(1, 8 // num_warps),
    )


def finish(plan: Plan, problem: Problem, forced: bool = False) -> Plan:
    """The plan with chunks, stages, variants of the kernel, and in backward the programs that share the rows."""
    chunks = chunks_of(plan, problem)
    if problem.direction == "forward":
        # Results are evicted first: with prefetched parameters, 8 rows take 8 ns less on an H200.
        stages_of_rows = 1 if problem.samples is None else plan.num_stages
        return dataclasses.replace(
            plan, chunks=chunks, num_stages=stages_of_rows, evict_first=plan.prefetch_parameters
        )
    finished = dataclasses.replace(
        plan,
        chunks=chunks,
        num_stages=stages(plan, problem),
        n_programs=plan.n_programs or _programs(plan, problem),
    )
    return with_tile_loads(finished, problem)


def _programs(plan: Plan, problem: Problem) -> int:
    """Backward: programs that share the rows."""
    tiles = ceil_div(problem.n_rows, plan.block_rows)
    if tiles <= FEW_TILES:
        return 1
    programs = plan.programs_per_sm * problem.device.n_sms
    return max(1, min(programs, tiles, most_programs(problem)))
