"""What fits: elements in the registers of a thread, tiles in the shared memory of a multiprocessor, partial sums.

The regimes share these limits. A plan describes one program; most limits are per thread or per multiprocessor (SM).
"""

from __future__ import annotations

import dataclasses

from ..problem import Direction, Problem
from .settings import Plan, SumsTile

# Columns of the widest rows that one program has registers for, without spills on every target.
RESIDENT_COLS = {"forward": 16384, "backward": 8192}
# Forward with a residual: the widest rows that leave registers for prefetched parameters (experiment FR-04).
PREFETCH_COLS = 4096
# Rows that are not aligned have plans of their own if they are wider than this, by the bytes that one access can have
# (experiments UR-01, UR-02).
UNALIGNED_COLS = {2: 32, 4: 32, 8: 64}
# Accesses of 8 bytes: wider rows are as fast with the table's plans.
WIDEST_8_BYTE_COLS = {"forward": 1024, "backward": 640}
# Accesses of 4 or 8 bytes: rows up to this width only in 16 bits, and in backward without a residual and options.
PLAIN_COLS = {2: 0, 4: 400, 8: RESIDENT_COLS["forward"]}
SM_REGISTERS = 1 << 16  # of an NVIDIA GPU
# Shared memory of an SM that tiles in flight may take. Other NVIDIA GPUs have at least 100 KiB.
PIPELINE_BYTES = {"sm_80": 150 << 10, "sm_90": 200 << 10, "sm_100": 200 << 10}
PIPELINE_BYTES_ELSEWHERE = 80 << 10
# mu and rstd are copied with their rows. Those of narrower rows take so much that they count; PIPELINE_BYTES leave room
# for the others.
NARROW_COLS = 32
PARTIAL_SUM_BYTES = 64 << 20  # of memory: backward's partial sums, and the messages of a grid
DY_BYTES = 64  # of dy that a thread has registers for, beside its sums and h
# Backward: elements of a row that a thread has registers for with (an activation, a third column sum, both).
ELEMENTS_32_BIT = (24, 24, 12)
ELEMENTS_16_BIT = (40, 28, 16)
# Of programs with more threads than this, each has at most 128 registers.
ROOM_THREADS = 256
# RMSNorm has registers for twice as many, but not for more than this.
MOST_ELEMENTS = 40
# Tiles of several short rows on NVIDIA GPUs (experiment SF-16): registers of a thread. In forward four programs of 4
# warps fit on an SM; in backward 256 threads, which are all that its programs have there.
MOST_REGISTERS = 255
REGISTERS = {"forward": 128, "backward": MOST_REGISTERS}
# About so many for each element of a thread, and for each row that it has elements of: address, mask, statistics, sums.
ELEMENT_REGISTERS = {"forward": 2, "backward": 8}
ROW_REGISTERS = {"forward": 10, "backward": 8}


def ceil_div(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``; 1 for 0."""
    return 1 << max(0, n - 1).bit_length()


def previous_power_of_2(n: int) -> int:
    """The largest power of two that is at most ``n``, which is at least 1."""
    return 1 << (n.bit_length() - 1)


def threads_of(plan: Plan, problem: Problem) -> int:
    """Threads of one program."""
    return plan.num_warps * problem.device.warp_size


def chunks_of(plan: Plan, problem: Problem) -> int:
    """Tiles that cover one program's columns of a row."""
    return ceil_div(problem.n_cols, plan.cluster_size * plan.block_cols)


def aligned_cols(problem: Problem) -> int:
    """Columns of one access: the largest power of two that divides the width, at most 16 bytes of them."""
    return min(problem.n_cols & -problem.n_cols, 16 // problem.dtype.itemsize)


def is_unaligned(problem: Problem) -> bool:
    """Whether rows begin at addresses that no wide access can use, because of their width, and have plans for that.

    Measured for rows in one program of an NVIDIA GPU, without samples and gates.
    """
    has_option = problem.activation is not None or problem.third_sum
    takes_registers = problem.residual_dtype is not None or has_option
    widest = RESIDENT_COLS[problem.direction] // (2 if problem.third_sum else 1)
    has_more = problem.samples is not None or problem.gate_dtype is not None or problem.rounds_each
    return (
        has_unaligned_plans(
            problem.direction, problem.n_cols, problem.dtype.itemsize, takes_registers
        )
        and problem.n_cols <= widest
        and problem.device.is_nvidia
        and not problem.computes_in_fp64
        and not has_more
    )


def has_unaligned_plans(
    direction: Direction, n_cols: int, itemsize: int, takes_registers: bool
) -> bool:
    """Whether rows of this width have plans for rows that are not aligned.

    takes_registers: with a residual, an activation or a third column sum.
    """
    access = min(n_cols & -n_cols, 16 // itemsize) * itemsize
    if access not in UNALIGNED_COLS:
        return False
    keeps_more = itemsize != 2 or (direction == "backward" and takes_registers)
    if keeps_more and n_cols <= PLAIN_COLS[access]:
        return False
    widest = WIDEST_8_BYTE_COLS if access == 8 else RESIDENT_COLS
    return UNALIGNED_COLS[access] < n_cols <= widest[direction]


def vector_cols(plan: Plan, problem: Problem) -> int:
    """Columns of a tile with 16 bytes for every thread. Narrower tiles make narrower memory accesses."""
    return 16 // problem.dtype.itemsize * threads_of(plan, problem)


def room_for_options(plan: Plan, problem: Problem) -> int:
    """Backward with an activation or a third column sum: elements of a tile that a program has registers for."""
    # In a tile of several rows, the h of a wider residual counts as well.
    h_dtype = (plan.block_rows > 1 and problem.residual_dtype) or problem.dtype
    is_16_bit = max(problem.dtype.itemsize, h_dtype.itemsize) <= 2
    elements = ELEMENTS_16_BIT if is_16_bit else ELEMENTS_32_BIT
    per_thread = elements[(problem.activation is not None) + 2 * problem.third_sum - 1]
    if not problem.center:
        per_thread = min(2 * per_thread, MOST_ELEMENTS)
    if problem.computes_in_fp64:
        per_thread //= 2
    if threads_of(plan, problem) > ROOM_THREADS:
        per_thread -= per_thread // 8
    return per_thread * threads_of(plan, problem)


def has_registers(plan: Plan, problem: Problem, block_rows: int) -> bool:
    """Whether a thread has registers for a tile of several short rows: an estimate (experiment SF-16).

    Neighboring threads have neighboring columns, as many as one access loads: 16 bytes of aligned rows, one column of
    rows of odd width. The other threads have other rows. So the narrower the access, the more rows a thread has.
    """
    threads = threads_of(plan, problem)
    rows = ceil_div(block_rows * plan.block_cols, aligned_cols(problem) * threads)
    rows = min(block_rows, rows)
    elements = ceil_div(block_rows * plan.block_cols * chunks_of(plan, problem), threads)
    direction = problem.direction
    estimate = ELEMENT_REGISTERS[direction] * elements + ROW_REGISTERS[direction] * rows
    width = 2 if problem.computes_in_fp64 else 1
    return width * estimate <= REGISTERS[direction]


def n_parts(plan: Plan, problem: Problem) -> int:
    """Parts that a row is divided into: split and grid; 1 in other regimes."""
    return ceil_div(problem.n_cols, plan.part_cols) if plan.part_cols else 1


def sums_rows(plan: Plan, problem: Problem) -> bool:
    """Backward: whether a thread has the same columns of every row of a tile, so that one sum serves all of them
    (experiment BR-07).
    """
    cols = vector_cols(plan, problem)
    if is_unaligned(problem):
        cols = aligned_cols(problem) * threads_of(plan, problem)
    return plan.block_rows > 1 and plan.block_cols >= cols


def loads_dy_with_h(plan: Plan, problem: Problem) -> bool:
    """Backward: whether a thread has registers for its part of ``dy`` as loaded, beside ``h`` and its sums
    (experiment OPT-02).
    """
    dy_bytes = plan.block_rows * plan.chunks * plan.block_cols * problem.dtype.itemsize
    fits = dy_bytes <= DY_BYTES * threads_of(plan, problem) and not problem.computes_in_fp64
    return fits and (not problem.third_sum or sums_rows(plan, problem))


def most_stages(plan: Plan, problem: Problem, tile_elements: int, loads: int = 1) -> int:
    """Backward: how many tiles can be in flight. Each is loaded ``loads`` times.

    On NVIDIA GPUs, tiles in flight take shared memory, except the one in registers. Other GPUs prefetch nothing.
    """
    if not problem.device.is_nvidia:
        return 1
    h, dh = problem.residual_dtype or problem.dtype, problem.residual_dtype
    per_element = loads * (problem.dtype.itemsize + h.itemsize) + (dh.itemsize if dh else 0)
    if problem.own_samples:  # samples are loaded with every row
        per_element += problem.sample_bytes
    if problem.gate_dtype is not None:
        per_element += problem.gate_dtype.itemsize
    if problem.residual_gate:  # x is loaded beside h
        per_element += problem.dtype.itemsize
    tile_bytes = tile_elements * per_element
    if problem.n_cols <= NARROW_COLS:
        statistics = 1 + problem.center
        tile_bytes += plan.block_rows * statistics * (8 if problem.computes_in_fp64 else 4)
    available = PIPELINE_BYTES.get(problem.device.arch, PIPELINE_BYTES_ELSEWHERE)
    fitting = 1 + available // (tile_bytes * plan.programs_per_sm)
    # dh is used late in a tile. With more than 3 stages the compiler keeps one more copy of every tensor.
    return fitting if dh is None else min(fitting, 3)


def stages(plan: Plan, problem: Problem) -> int:
    """Backward tile, resident, cluster: the stages of the plan, or as many as fit in shared memory."""
    tile_elements = plan.block_rows * chunks_of(plan, problem) * plan.block_cols
    return max(1, min(plan.num_stages, most_stages(plan, problem, tile_elements)))


def most_programs(problem: Problem) -> int:
    """Backward: programs whose partial column sums fit in PARTIAL_SUM_BYTES."""
    itemsize = 8 if problem.computes_in_fp64 else 4
    return PARTIAL_SUM_BYTES // (problem.n_cols * itemsize * max(1, problem.n_column_sums))


def sums_tile(plan: Plan, problem: Problem) -> SumsTile | None:
    """Backward: the tile of ``column_sums``, small enough for many programs, with enough work for each. None where no
    parameter has a gradient, and where the backward kernel stores the sums itself: a single program, cluster or group
    does, but the multipass kernels never do.

    Short rows leave many partial sums of few columns, wide rows few sums of many. An NVIDIA GPU loads at least 8
    columns of fp32 (a 32-byte sector). Only the width decides, so another number of rows compiles nothing.
    """
    stores_them = plan.n_programs == 1 and plan.regime not in ("looped", "split")
    if stores_them or not problem.n_column_sums:
        return None
    if problem.n_cols <= 4096 and problem.device.is_nvidia:
        return SumsTile(512, 8, 8)
    return SumsTile(128, 32, 4) if problem.n_cols <= 16384 else SumsTile(32, 128, 4)


def with_tile_loads(plan: Plan, problem: Problem) -> Plan:
    """Backward tile, resident, cluster: a finished plan with what is in registers while a tile is computed."""
    load_dy_with_h = loads_dy_with_h(plan, problem)
    return dataclasses.replace(
        plan,
        sum_rows=sums_rows(plan, problem),
        load_dy_with_h=load_dy_with_h,
        # Measured: for tiles of several rows, more instructions of low latency are faster.
        latency_hidden=load_dy_with_h and plan.block_rows == 1,
        # Scalars take fewer instructions of a row. With an activation, instructions are the limit.
        scalar_statistics=problem.center
        and problem.activation is not None
        and plan.block_rows == 1,
        sums_tile=sums_tile(plan, problem),
    )
