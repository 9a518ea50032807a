"""Problem -> Plan: a tuned table for the device where there is one, else these rules.

Nothing compiled into a kernel depends on the number of rows, except through the choice between ``looped`` and
``split`` for rows too wide for one program: a new batch size compiles nothing for rows that fit.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

from .problem import Plan, Problem, Regime

# Columns up to which one program can hold a row in registers: (forward, backward), measured by compiling for
# every target without a spill. fp64 takes twice the registers.
RESIDENT_COLS = {False: (16384, 8192), True: (8192, 4096)}
TILE_ELEMENTS = 2048  # elements of a tile of several short rows
CHUNK_COLS = 4096  # columns of one chunk of a wide row
WIDE_PROGRAMS_PER_SM = 2  # a wide row is split until every SM has this many programs
PARTIAL_SUM_BYTES = 64 << 20  # what backward may allocate for partial sums

_forced: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("forced", default={})


def plan(problem: Problem) -> Plan:
    """The plan for a problem: a pure function of it (and of ``force``, in tests and tuners)."""
    chosen = _from_table(problem) or _from_rules(problem, _forced.get().get("regime"))
    if forced := _forced.get():
        chosen = dataclasses.replace(chosen, **forced, source="forced")
    return _with_programs(chosen, problem)


@contextlib.contextmanager
def force(**settings: Any) -> Iterator[None]:
    """Within this context plans take these settings: ``with force(regime="split", part_cols=64): ...``"""
    token = _forced.set({**_forced.get(), **settings})
    try:
        yield
    finally:
        _forced.reset(token)


def forced_settings() -> tuple[tuple[str, Any], ...]:
    """The settings of ``force``, hashable; empty almost always."""
    forced = _forced.get()
    return tuple(forced.items()) if forced else ()


def _from_rules(problem: Problem, regime: Regime | None) -> Plan:
    forward = problem.direction == "forward"
    resident_cols = RESIDENT_COLS[problem.computes_in_fp64][0 if forward else 1]
    block_cols = next_power_of_2(problem.n_cols)
    fits = block_cols <= resident_cols if regime is None else regime in ("tile", "resident")
    if fits:
        block_rows = max(1, TILE_ELEMENTS // block_cols) if regime != "resident" else 1
        if problem.computes_in_fp64:
            block_rows = max(1, block_rows // 2)
        return Plan(
            regime="tile" if block_rows > 1 else "resident",
            block_rows=block_rows,
            block_cols=block_cols,
            num_warps=_warps(block_rows * block_cols, problem),
        )
    block_cols = CHUNK_COLS // 2 if problem.computes_in_fp64 else CHUNK_COLS
    num_warps = _warps(block_cols, problem)
    if regime is None:
        enough = WIDE_PROGRAMS_PER_SM * problem.device.n_sms
        regime = "looped" if problem.n_rows >= enough else "split"
    part_cols = next_power_of_2(problem.n_cols) if regime == "looped" else 2 * block_cols
    return Plan(regime, 1, block_cols, num_warps, part_cols=part_cols)


def _warps(tile_elements: int, problem: Problem) -> int:
    """16 elements a thread: two 16-byte loads of a 16-bit row in flight."""
    per_thread = 8 if problem.computes_in_fp64 else 16
    most = 1024 // problem.device.warp_size
    if problem.direction == "backward":
        most = min(most, 16)
    threads = next_power_of_2(max(1, tile_elements // per_thread))
    return max(1, min(most, threads // problem.device.warp_size))


def _with_programs(plan: Plan, problem: Problem) -> Plan:
    """Backward shares the rows between programs: enough to fill the device, few enough for the budget."""
    if problem.direction == "forward" or plan.n_programs:
        return plan
    itemsize = 8 if problem.computes_in_fp64 else 4
    row_of_sums = problem.n_cols * itemsize * max(1, problem.n_column_sums)
    affordable = max(1, PARTIAL_SUM_BYTES // row_of_sums)
    if plan.regime in ("tile", "resident"):
        threads = plan.num_warps * problem.device.warp_size
        programs = problem.device.n_sms * max(1, 1024 // threads)
        most = -(-problem.n_rows // plan.block_rows)
    else:
        col_blocks = -(-problem.n_cols // plan.block_cols)
        programs = -(-8 * problem.device.n_sms // col_blocks)
        most = problem.n_rows
    return dataclasses.replace(plan, n_programs=max(1, min(programs, most, affordable)))


def _from_table(problem: Problem) -> Plan | None:
    if _forced.get().get("regime"):
        return None
    return None


@functools.cache
def _table(arch: str) -> dict[str, Any] | None:
    """The tuned table of an architecture, read once."""
    file = resources.files(__package__) / "tables" / f"{arch}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
