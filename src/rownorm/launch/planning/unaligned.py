"""Rules for rows that are not aligned: they are loaded one, two or four columns at a time (``capacity.is_unaligned``).

Each access takes an instruction, so few others may come with it: a full chunk needs no mask, and all chunks share the
address of the first. So a row has many chunks of few columns, as many as the threads that share it load at once.

    wide rows      all threads of a program share a row (experiment UR-01)
    short rows     a program has several, and each is in half a warp or in one (experiment UR-02)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..problem import Problem
from .capacity import (
    MOST_REGISTERS,
    PREFETCH_COLS,
    SM_REGISTERS,
    aligned_cols,
    ceil_div,
    next_power_of_2,
    previous_power_of_2,
    threads_of,
)
from .settings import Plan, Regime

REASON = "rows that are not aligned: accesses of one to four columns, in chunks of few columns (experiment UR-02)"

# Wide rows. Columns of a thread, and of those the most that are in one chunk each. A third column sum takes the
# registers of half of them.
THREAD_COLS = {"forward": 28, "backward": 14}
THREAD_COLS_8_BYTES = {"forward": 28, "backward": 20}
MOST_CHUNKS = 16
# Elements of a thread where a program of one warp has several rows; half where it has more to keep.
ELEMENTS = 20
# Backward: warps on a multiprocessor, by the elements of a thread (the fewer, the more registers each has); the fewest
# where it has more to keep.
WARPS = {8: 32, 12: 24, ELEMENTS: 16, 40: 8}
# Accesses of 4 bytes are the narrowest that can be copied to shared memory.
NUM_STAGES = 3

# Short rows of 16 bits: the limits, elements and warps that were fastest in the sweeps of experiment UR-02.
# Forward, with accesses of 2 bytes and of more.
SHORT_COLS = {2: 512, 4: 640, 8: 640}
SHORT_WARPS = 4
SHORT_ROWS = 16
# Elements of a thread: RMSNorm, and LayerNorm with accesses of more than 2 bytes.
SHORT_ELEMENTS = {"forward": (12, 32), "backward": (16, 20)}
# Up to so many columns, half a warp has a row, by the bytes of an access: (RMSNorm, LayerNorm).
HALF_WARP_COLS = {
    "forward": {2: (0, 256), 4: (640, 640), 8: (640, 640)},
    "backward": {4: (384, 256), 8: (384, 320)},
}
# Backward with accesses of 8 bytes: so many columns are copied to shared memory. LayerNorm of more has registers for
# twice the rows in half the warps.
COPIED_COLS = 256
# Backward of more columns, by the bytes of an access: programs of one warp, with so many elements for each thread.
ONE_WARP_COLS = {4: 512, 8: 384}
ONE_WARP_ELEMENTS = (32, 24)  # (RMSNorm, LayerNorm)
# RMSNorm backward with half a warp for a row: warps on a multiprocessor, by the elements of a thread.
RMS_WARPS = {10: 32, 14: 24, 24: 16}


def rule(problem: Problem) -> Plan:
    """The plan of a plain norm where the table has no entry."""
    if problem.dtype.itemsize != 2:
        return _wide(problem)
    access = 2 * aligned_cols(problem)
    if problem.direction == "forward":
        return _short(problem) if problem.n_cols <= SHORT_COLS[access] else _wide(problem)
    if access == 2 or _keeps_more(problem) or problem.residual_dtype is not None:
        return _wide(problem)
    if problem.n_cols <= HALF_WARP_COLS["backward"][access][problem.center]:
        return _short(problem)
    return _one_warp(problem) if problem.n_cols <= ONE_WARP_COLS[access] else _wide(problem)


def _keeps_more(problem: Problem) -> bool:
    """Whether a thread of backward keeps more than a row and the sums of the plain norm."""
    return (problem.direction == "backward" and problem.activation is not None) or problem.third_sum


def _short(problem: Problem) -> Plan:
    """Several rows in a program of 4 warps. Programs of fewer bytes would be started too slowly."""
    direction, width = problem.direction, aligned_cols(problem)
    lanes = problem.device.warp_size
    # Half a warp would have too narrow a part of a 32-bit residual.
    is_wider = problem.residual_dtype is not None and problem.residual_dtype.itemsize > 2
    if problem.n_cols <= HALF_WARP_COLS[direction][2 * width][problem.center] and not is_wider:
        lanes //= 2
    rows_at_once = SHORT_WARPS * problem.device.warp_size // lanes
    cols = ceil_div(problem.n_cols, lanes * width) * width
    has_registers = problem.center and width > 1 and problem.residual_dtype is None
    elements = SHORT_ELEMENTS[direction][has_registers]
    has_twice = direction == "backward" and problem.center and problem.n_cols > COPIED_COLS
    if has_twice:
        elements *= 2
    rows = rows_at_once * previous_power_of_2(max(1, elements // cols))
    plan = Plan("tile", min(SHORT_ROWS, rows), lanes * width, SHORT_WARPS, reason=REASON)
    if direction == "forward":
        return dataclasses.replace(plan, prefetch_parameters=True, fast_rstd=True)
    warps = _warps(WARPS if problem.center else RMS_WARPS, plan.block_rows // rows_at_once * cols)
    if problem.device.arch != "sm_90":  # which was measured; on others some with 80 registers spill
        warps = min(warps, WARPS[ELEMENTS])
    is_copied = width == 4 and (problem.n_cols <= COPIED_COLS or has_twice)
    return _with_programs(plan, problem, warps, NUM_STAGES if is_copied else 1)


def _one_warp(problem: Problem) -> Plan:
    """Backward: a program of one warp has one or two rows, which are not copied to shared memory."""
    lanes, width = problem.device.warp_size, aligned_cols(problem)
    cols = ceil_div(problem.n_cols, lanes * width) * width
    block_rows = previous_power_of_2(max(1, ONE_WARP_ELEMENTS[problem.center] // cols))
    regime: Regime = "tile" if block_rows > 1 else "resident"
    plan = Plan(regime, block_rows, lanes * width, num_warps=1, reason=REASON)
    return _with_programs(plan, problem, WARPS[ELEMENTS], num_stages=1)


def _wide(problem: Problem) -> Plan:
    """One row in all threads of a program; several where one warp has registers for them."""
    forward = problem.direction == "forward"
    lanes = problem.device.warp_size
    of_threads = THREAD_COLS_8_BYTES if aligned_cols(problem) == 4 else THREAD_COLS
    most_cols = of_threads[problem.direction] // (2 if problem.third_sum else 1)
    num_warps = next_power_of_2(ceil_div(problem.n_cols, lanes * most_cols))
    if forward and problem.residual_dtype is not None and 2 * lanes * num_warps == 1024:
        num_warps *= 2  # so that two programs fit on a multiprocessor
    cols = ceil_div(problem.n_cols, lanes * num_warps)
    block_rows = 1
    if num_warps == 1:
        elements = ELEMENTS
        if _keeps_more(problem) or problem.residual_dtype is not None:
            # sm_90 was measured. On others half as many, because some of its tiles spill there.
            elements //= 2 if problem.device.arch == "sm_90" else 4
        block_rows = previous_power_of_2(max(1, elements // cols))
    width = max(aligned_cols(problem), 1 if cols <= MOST_CHUNKS else 2)
    regime: Regime = "tile" if block_rows > 1 else "resident"
    plan = Plan(regime, block_rows, lanes * num_warps * width, num_warps, reason=REASON)
    if forward:
        prefetch = problem.n_cols <= PREFETCH_COLS
        return dataclasses.replace(plan, prefetch_parameters=prefetch, fast_rstd=True)
    widest = max(dtype.itemsize for dtype in (problem.dtype, problem.residual_dtype) if dtype)
    is_copied = max(widest, aligned_cols(problem) * problem.dtype.itemsize) >= 4
    warps = _warps(WARPS, ELEMENTS if _keeps_more(problem) or is_copied else block_rows * cols)
    return _with_programs(plan, problem, warps, NUM_STAGES if is_copied else 1)


def _warps(by_elements: Mapping[int, int], elements: int) -> int:
    """Warps on a multiprocessor whose threads have registers for so many elements."""
    return next(warps for most, warps in by_elements.items() if elements <= most)


def _with_programs(plan: Plan, problem: Problem, warps: int, num_stages: int) -> Plan:
    """Backward: as many programs on a multiprocessor as have so many warps."""
    programs = ceil_div(warps, plan.num_warps)
    registers = SM_REGISTERS // (programs * threads_of(plan, problem)) // 8 * 8
    return dataclasses.replace(
        plan,
        programs_per_sm=programs,
        num_stages=num_stages,
        maxnreg=min(MOST_REGISTERS, registers),
    )
