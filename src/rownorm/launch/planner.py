"""Problem -> Plan: a tuned table for the architecture where there is one, else rules that follow the same pattern.

Rows that fit one program are planned by their width alone, so a new number of rows compiles nothing. Wider rows are
``looped`` where there are enough of them to fill the device and ``split`` where there are not; into how many parts, and
among how many programs backward shares the rows, are numbers that no kernel is compiled for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

from .problem import Plan, Problem, Regime

# Columns up to which one program holds whole rows in registers without a spill, on every target: (forward, backward).
RESIDENT_COLS = (16384, 8192)
CHUNK_COLS = 4096  # columns of one chunk of a wider row
TILE_ELEMENTS = {"forward": 2048, "backward": 4096}  # elements of a tile of several short rows
MOST_PARTS = 512  # parts of one row
PROGRAMS_PER_SM = 4  # what a wide row is split for
PIPELINE_BYTES = 128 << 10  # shared memory for the tiles in flight on one SM
PARTIAL_SUM_BYTES = 64 << 20  # what backward may allocate for partial sums

_forced: dict[str, Any] = {}
_forgetters: list[Callable[[], None]] = []


def plan(problem: Problem) -> Plan:
    """The plan for a problem: a pure function of it (and of ``force``, in tests and tuners)."""
    chosen = _from_table(problem) or _from_rules(problem)
    chosen = _with_parts(dataclasses.replace(chosen, **_forced), problem)
    return dataclasses.replace(chosen, source="forced") if _forced else chosen


@contextlib.contextmanager
def force(**settings: Any) -> Iterator[None]:
    """Plans take these settings within this context: ``with force(regime="split", part_cols=64): ...``

    For tests and tuners: it holds for every thread, and what was compiled before is found again only by compiling.
    """
    global _forced
    before, _forced = _forced, {**_forced, **settings}
    _tell_forgetters()
    try:
        yield
    finally:
        _forced = before
        _tell_forgetters()


def on_change(forget: Callable[[], None]) -> None:
    """Call ``forget`` whenever plans may have changed: it drops what was made from them."""
    _forgetters.append(forget)


def _tell_forgetters() -> None:
    for forget in _forgetters:
        forget()


def _from_table(problem: Problem) -> Plan | None:
    """The row of the architecture's table for this width, if there is one."""
    table = _table(problem.device.arch)
    if table is None or problem.computes_in_fp64 or "regime" in _forced:
        return None
    kind = (problem.direction, problem.center, problem.dtype.itemsize)
    for row in table["plans"]:
        if (row["direction"], row["center"], row["itemsize"]) == kind and problem.n_cols <= row["max_cols"]:
            settings = {name: value for name, value in row["settings"].items()}
            if settings["regime"] in ("tile", "resident"):
                settings["block_cols"] = next_power_of_2(problem.n_cols)
            return Plan(**settings, source=f"table {table['device']}")
    return None


@functools.cache
def _table(arch: str) -> dict[str, Any] | None:
    """The tuned table of an architecture, read once."""
    file = resources.files(__package__) / "tables" / f"{arch}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def _from_rules(problem: Problem) -> Plan:
    forward = problem.direction == "forward"
    width = 2 if problem.computes_in_fp64 else 1  # fp64 takes twice the registers
    block_cols = next_power_of_2(problem.n_cols)
    regime: Regime | None = _forced.get("regime")
    fits = block_cols * width <= RESIDENT_COLS[0 if forward else 1]
    if regime in ("tile", "resident") or (regime is None and fits):
        block_rows = max(1, TILE_ELEMENTS[problem.direction] // width // block_cols)
        if regime == "resident":
            block_rows = 1
        num_warps = _warps(block_rows * block_cols * width, problem)
        return Plan(
            regime="tile" if block_rows > 1 else "resident",
            block_rows=block_rows,
            block_cols=block_cols,
            num_warps=num_warps,
            programs_per_sm=max(1, 8 // num_warps),
            stages=_stages(block_rows * block_cols, max(1, 8 // num_warps), problem),
        )
    block_cols = CHUNK_COLS // width
    return Plan("looped", 1, block_cols, _warps(CHUNK_COLS, problem), programs_per_sm=8)


def _warps(elements: int, problem: Problem) -> int:
    """Elements a thread: 16 to 32, so that a thread has several 16-byte loads in flight and needs no spill."""
    per_thread = 16 if problem.direction == "forward" else 32
    threads = max(problem.device.warp_size, elements // per_thread)
    return min(threads, 1024) // problem.device.warp_size


def _stages(elements: int, programs_per_sm: int, problem: Problem) -> int:
    """Backward: tiles in flight, as many as fit the shared memory of an NVIDIA SM; elsewhere the compiler's default."""
    if problem.direction == "forward" or not problem.device.arch.startswith("sm_"):
        return 1
    rows = [problem.dtype, problem.dtype] if problem.residual_dtype is None else [problem.dtype]
    rows += [problem.residual_dtype] * 2 if problem.residual_dtype is not None else []
    tile_bytes = elements * sum(dtype.itemsize for dtype in rows) * programs_per_sm
    return max(1, min(5, 1 + PIPELINE_BYTES // tile_bytes))


def _with_parts(plan: Plan, problem: Problem) -> Plan:
    """The numbers that depend on how many rows there are: parts of a row, programs that share the rows."""
    n_rows, n_cols, n_sms = problem.n_rows, problem.n_cols, problem.device.n_sms
    chunks = -(-n_cols // plan.block_cols)
    wide = plan.regime in ("looped", "split")
    if wide and not plan.part_cols:
        parts = 1
        if "regime" not in _forced or plan.regime == "split":
            parts = min(chunks, MOST_PARTS, max(1, PROGRAMS_PER_SM * n_sms // max(1, n_rows)))
        part_cols = -(-chunks // parts) * plan.block_cols
        plan = dataclasses.replace(plan, regime="split" if parts > 1 else plan.regime, part_cols=part_cols)
    if plan.part_cols % plan.block_cols:
        raise ValueError(f"part_cols must be a multiple of block_cols, {plan.block_cols}; got {plan.part_cols}")
    if problem.direction == "backward" and not plan.n_programs:
        itemsize = 8 if problem.computes_in_fp64 else 4
        affordable = PARTIAL_SUM_BYTES // (n_cols * itemsize * max(1, problem.n_column_sums))
        programs = -(-plan.programs_per_sm * n_sms // (chunks if wide else 1))
        tiles = -(-n_rows // plan.block_rows)
        plan = dataclasses.replace(plan, n_programs=max(1, min(programs, tiles, affordable)))
    return plan


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
