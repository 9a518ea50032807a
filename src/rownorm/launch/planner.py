"""Problem -> Plan: a tuned table for the architecture where there is one, else rules that follow the same pattern.

Rows that fit one program are planned by their width alone, so a new number of rows compiles nothing. So are wider
rows, where the GPU has clusters: they are shared by the programs of a ``cluster``, and the widest, in backward, by a
whole ``grid``. Else they are ``looped`` where there are enough of them to fill the device and ``split`` where there are
not; into how many parts, and among how many programs backward shares the rows, are numbers that no kernel is compiled
for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

from .launcher import VERSION
from .problem import Plan, Problem, Regime

# Columns up to which one program holds whole rows in registers without a spill, on every target: (forward, backward).
RESIDENT_COLS = (16384, 8192)
# Bytes of one program's share of a row in a cluster.
CLUSTER_BYTES = {"forward": 32768, "backward": 16384}
CLUSTER_BLOCK = 4096  # columns of one tile there
MOST_PROGRAMS = 16  # of one cluster
GRID_TILE_BYTES = 16384  # of one tensor
GRID_BLOCK = 2048  # columns of one tile there
REGISTERS = 65536  # of an NVIDIA SM
# Bytes of a row and its residual that a thread of a cluster holds, by the warps there are; and if it loads ahead.
HELD_BYTES = {8: 384, 16: 256}
HELD_AHEAD = 128
EARLY_COLS = 4096  # up to which weights are loaded early beside a residual
MOST_CHUNKS = 8  # tiles that hold a row whose width is no power of two
CHUNK_COLS = {"forward": 4096, "backward": 2048}  # columns of one chunk of a wider row
TILE_ELEMENTS = {"forward": 2048, "backward": 4096}  # elements of a tile of several short rows
# Columns up to which a row is worth no second launch, however few rows there are.
SPLIT_COLS = 16384
MOST_PARTS = 512  # parts of one row
PROGRAMS_PER_SM = 4  # what a wide row is split for
# Of an SM's shared memory; elsewhere: NVIDIA GPUs that are not in data centres.
PIPELINE_BYTES = {"sm_80": 150 << 10, "sm_90": 200 << 10, "sm_100": 200 << 10}
PIPELINE_BYTES_ELSEWHERE = 80 << 10
MOST_STAGES = 5
FEW_TILES = 8  # up to so many are backward of one program, which needs no kernel to add up its sums
# Backward: elements a thread has room for with an activation, with a third sum, with both; in 32 bits and in 16.
ROOM = ((24, 24, 12), (40, 32, 16))
PARTIAL_SUM_BYTES = 64 << 20  # what backward may allocate for partial sums, and a grid's mail

_forced: dict[str, Any] = {}
_forgetters: list[Callable[[], None]] = []


def plan(problem: Problem) -> Plan:
    """The plan for a problem: a pure function of it (and of ``force``, in tests and tuners)."""
    chosen = _from_table(problem) or _from_rules(problem)
    if not _forced:
        chosen = _lightened(chosen, problem)
    chosen = _settled(dataclasses.replace(chosen, **_forced), problem)
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
    rows = [
        row for row in table["plans"] if (row["direction"], row["center"], row["itemsize"]) == kind
    ]
    if not rows:
        return None
    # Rows are in order of width. The last one serves any width beyond it if it takes rows in chunks.
    row = next((row for row in rows if problem.n_cols <= row["max_cols"]), rows[-1])
    if problem.n_cols > row["max_cols"] and row["settings"]["regime"] != "looped":
        return None
    settings = {"block_cols": next_power_of_2(row["max_cols"]), **row["settings"]}
    if not table["triton"].startswith("{}.{}.".format(*VERSION)):
        settings["registers"] = 0  # a limit is good for the compiler it was found with
    if settings["regime"] in ("tile", "resident"):
        settings["block_cols"] = min(settings["block_cols"], next_power_of_2(problem.n_cols))
    return Plan(**settings, source=f"table for {table['device']}")


@functools.cache
def _table(arch: str) -> dict[str, Any] | None:
    """The tuned table of an architecture, read once."""
    file = resources.files(__package__) / "tables" / f"{arch}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def _from_rules(problem: Problem) -> Plan:
    forward = problem.direction == "forward"
    width = 2 if problem.computes_in_fp64 else 1  # fp64 takes twice the registers
    regime: Regime | None = _forced.get("regime")
    fits = next_power_of_2(problem.n_cols) * width <= RESIDENT_COLS[0 if forward else 1]
    if regime in ("tile", "resident") or (regime is None and fits):
        block_cols, chunks = _blocks(problem)
        held_cols = block_cols * chunks
        block_rows = max(1, TILE_ELEMENTS[problem.direction] // width // next_power_of_2(held_cols))
        if regime == "resident":
            block_rows = 1
        num_warps = _warps(block_rows * held_cols * width, block_rows * block_cols, problem)
        return Plan(
            regime="tile" if block_rows > 1 else "resident",
            block_rows=block_rows,
            block_cols=block_cols,
            num_warps=num_warps,
            programs_per_sm=max(1, 8 // num_warps),
            stages=MOST_STAGES,
        )
    if regime == "grid" or (regime is None and _too_wide_for_clusters(problem)):
        return _in_a_grid(problem)
    if regime == "cluster" or (regime is None and problem.device.clusters):
        return _in_clusters(problem)
    return _in_chunks(problem)


def _blocks(problem: Problem) -> tuple[int, int]:
    """(columns of a tile, tiles) that hold a row with few lanes to spare: 5120 columns are 5 tiles of 1024."""
    whole = next_power_of_2(problem.n_cols)
    # A tile gives every lane of a warp 16 bytes: with fewer, accesses are narrow.
    block_cols = max(whole // MOST_CHUNKS, 16 // problem.dtype.itemsize * problem.device.warp_size)
    if block_cols >= whole:
        return whole, 1
    chunks = -(-problem.n_cols // block_cols)
    while chunks % 2 == 0:
        block_cols, chunks = 2 * block_cols, chunks // 2
    return block_cols, chunks


def _in_clusters(problem: Problem) -> Plan:
    """Rows too wide for one program, shared by as few as hold them: each program's share fits its registers."""
    share = CLUSTER_BYTES[problem.direction] // problem.dtype.itemsize
    cluster = min(MOST_PROGRAMS, next_power_of_2(-(-problem.n_cols // share)))
    num_warps = 16 if problem.direction == "forward" else 8
    block_cols = min(CLUSTER_BLOCK, share)
    return Plan("cluster", 1, block_cols, num_warps, cluster=cluster, stages=MOST_STAGES)


def _too_wide_for_clusters(problem: Problem) -> bool:
    share = CLUSTER_BYTES[problem.direction] // problem.dtype.itemsize
    return problem.direction == "backward" and problem.n_cols > MOST_PROGRAMS * share


def _in_a_grid(problem: Problem) -> Plan:
    """Backward of rows too wide for a cluster: shared by programs all over the GPU."""
    block_cols = min(GRID_BLOCK, next_power_of_2(problem.n_cols))
    programs_per_sm = 1 if problem.n_cols <= GRID_BLOCK * problem.device.n_sms else 2
    block_rows = GRID_TILE_BYTES // (GRID_BLOCK * problem.dtype.itemsize * programs_per_sm)
    return Plan(
        "grid", max(1, block_rows), block_cols, 8, programs_per_sm=programs_per_sm, stages=3, lag=3
    )


def _in_chunks(problem: Problem) -> Plan:
    """Rows too wide for one program's registers."""
    block_cols = CHUNK_COLS[problem.direction] // (2 if problem.computes_in_fp64 else 1)
    threads = 512 if problem.direction == "forward" else 256
    num_warps = threads // problem.device.warp_size
    return Plan("looped", 1, block_cols, num_warps, programs_per_sm=8)


def _lightened(plan: Plan, problem: Problem) -> Plan:
    """What was planned for a plain norm, made fit for what else has to be kept."""
    forward = problem.direction == "forward"
    if plan.regime in ("looped", "split"):
        has_more = problem.pre_bias or problem.activation or problem.residual_dtype is not None
        # A row that one program could hold is read again only where that is all there is to do again.
        held = forward and has_more and problem.n_cols <= RESIDENT_COLS[0]
        return _from_rules(problem) if held else plan
    if plan.regime == "grid":
        return _with_fewer_rows(plan, problem)
    return _with_residual(plan, problem) if forward else _with_options(plan, problem)


def _with_residual(plan: Plan, problem: Problem) -> Plan:
    """Forward: beside a residual, wide rows leave no registers for weights, and take a cluster more programs."""
    if problem.residual_dtype is None:
        return plan
    if plan.regime != "cluster":
        return dataclasses.replace(plan, early=plan.early and problem.n_cols <= EARLY_COLS)
    plan = dataclasses.replace(plan, programs_per_sm=1, registers=0)
    bytes_held = problem.dtype.itemsize + problem.residual_dtype.itemsize
    # Of this row and, as much again, of the next.
    held_by_thread = 1 << (HELD_AHEAD // bytes_held).bit_length() - 1
    threads = 16 * problem.device.warp_size
    cluster = next_power_of_2(-(-problem.n_cols // (held_by_thread * threads)))
    block_cols = 16 // problem.dtype.itemsize * threads
    if problem.device.resident(cluster):
        return dataclasses.replace(
            plan, block_cols=block_cols, num_warps=16, cluster=cluster, stages=2
        )
    # Wider rows are not loaded ahead. Uncentred, they are best held by few threads with many registers.
    for num_warps, registers in ((16, 0),) if problem.center else ((8, 128), (16, 0)):
        wide = dataclasses.replace(
            plan,
            block_cols=block_cols * num_warps // 16,
            num_warps=num_warps,
            cluster=MOST_PROGRAMS,
            stages=1,
            registers=registers,
        )
        held_cols = wide.block_cols * _chunks(wide, problem)
        if held_cols * bytes_held <= HELD_BYTES[num_warps] * num_warps * problem.device.warp_size:
            return wide
    return _in_chunks(problem)


def _with_options(plan: Plan, problem: Problem) -> Plan:
    """Backward: an activation takes time in every lane, and with it or a third sum a thread holds fewer elements."""
    activates, sums = problem.activation is not None, problem.n_column_sums > 2
    if not (activates or sums):
        return plan
    if activates and plan.regime == "resident":
        plan = _without_spare_lanes(plan, problem)
    threads = plan.num_warps * problem.device.warp_size
    if plan.regime == "resident" and plan.programs_per_sm * threads > 384:
        # Too many threads for what each has to keep: one program with two rows instead of two with one.
        half = plan.programs_per_sm // 2
        plan = dataclasses.replace(plan, regime="tile", block_rows=2, programs_per_sm=half)
    if sums_rows(plan, problem):
        return plan
    room = ROOM[problem.dtype.itemsize <= 2][activates + 2 * sums - 1] * threads
    if not problem.center:
        room = min(2 * room, 40 * threads)
    held_cols = plan.block_cols * _chunks(plan, problem)
    if plan.block_rows * held_cols <= room:
        return plan
    if plan.regime == "cluster":
        wider = _with_more_programs(plan, problem, room)
        return wider or _with_fewer_rows(_in_a_grid(problem), problem)
    if plan.block_rows > 1:
        block_rows = plan.block_rows
        while block_rows > 1 and block_rows * held_cols > room:
            block_rows //= 2
        regime: Regime = "tile" if block_rows > 1 else "resident"
        return dataclasses.replace(plan, block_rows=block_rows, regime=regime)
    if threads < 256:
        programs_per_sm = max(1, plan.programs_per_sm // 2)
        return dataclasses.replace(
            plan, num_warps=2 * plan.num_warps, programs_per_sm=programs_per_sm
        )
    alone = dataclasses.replace(plan, regime="cluster")
    return _with_more_programs(alone, problem, room) or _in_chunks(problem)


def _without_spare_lanes(plan: Plan, problem: Problem) -> Plan:
    """Tiles that a row fills, where many lanes of those planned would lie beyond it."""
    if 4 * plan.block_cols * _chunks(plan, problem) < 5 * problem.n_cols:
        return plan
    block_cols, chunks = _blocks(problem)
    num_warps = _warps(block_cols * chunks, block_cols, problem)
    programs_per_sm = max(1, 8 // num_warps)
    return dataclasses.replace(
        plan, block_cols=block_cols, num_warps=num_warps, programs_per_sm=programs_per_sm
    )


def _with_more_programs(plan: Plan, problem: Problem, room: int) -> Plan | None:
    """A cluster so large that a program's share of a row is at most ``room`` columns, if there are such clusters."""
    threads = plan.num_warps * problem.device.warp_size
    narrowest = 16 // problem.dtype.itemsize * threads  # with fewer columns, accesses are narrow
    block_cols = plan.block_cols
    while block_cols > room and block_cols > narrowest:
        block_cols //= 2
    plan = dataclasses.replace(plan, block_cols=block_cols)
    while plan.block_cols * _chunks(plan, problem) > room:
        plan = dataclasses.replace(plan, cluster=2 * plan.cluster)
        if block_cols > room or problem.device.resident(plan.cluster) == 0:
            return None
    return plan


def sums_rows(plan: Plan, problem: Problem) -> bool:
    """Backward: whether a thread has its columns of all rows of a tile, so that it keeps one sum for all of them."""
    threads = plan.num_warps * problem.device.warp_size
    return plan.block_rows > 1 and plan.block_cols * problem.dtype.itemsize >= 16 * threads


def _with_fewer_rows(plan: Plan, problem: Problem) -> Plan:
    """A grid: tiles that can be loaded ahead, of 32 elements a thread; of 16 with options that take registers."""
    light = problem.activation is None and problem.n_column_sums <= 2
    threads = plan.num_warps * problem.device.warp_size
    room = (32 if light else 16) * threads // plan.programs_per_sm
    while plan.block_rows > 1 and (
        plan.block_rows * plan.block_cols > room or _most_stages(plan, problem) < plan.stages
    ):
        plan = dataclasses.replace(plan, block_rows=plan.block_rows // 2)
    return dataclasses.replace(plan, block_cols=min(plan.block_cols, room))


def _warps(elements: int, tile: int, problem: Problem) -> int:
    """16 elements a thread; backward has at most 256 threads, which leaves each its 255 registers, so up to 32.

    Where a row lies in several tiles, no more threads than have 16 bytes of one.
    """
    threads = next_power_of_2(elements // 16)
    if tile < elements:
        threads = min(threads, tile * problem.dtype.itemsize // 16)
    threads = min(threads, 1024 if problem.direction == "forward" else 256)
    return max(1, threads // problem.device.warp_size)


def _most_stages(plan: Plan, problem: Problem) -> int:
    """Backward: tiles in flight that fit the shared memory of an NVIDIA SM. Other GPUs prefetch into registers: 1."""
    arch = problem.device.arch
    if problem.direction == "forward":
        return 2 if plan.regime == "cluster" else 1
    if not arch.startswith("sm_"):
        return 1
    h, dh = problem.residual_dtype or problem.dtype, problem.residual_dtype
    reads = 2 if plan.regime == "grid" else 1
    per_element = reads * (problem.dtype.itemsize + h.itemsize) + (dh.itemsize if dh else 0)
    tile_bytes = plan.block_rows * max(1, plan.chunks) * plan.block_cols
    tile_bytes *= per_element * plan.programs_per_sm
    fitting = 1 + PIPELINE_BYTES.get(arch, PIPELINE_BYTES_ELSEWHERE) // tile_bytes
    # dh is wanted late in a tile, and with more than 3 in flight the compiler keeps one more copy of everything.
    return fitting if dh is None else min(fitting, 3)


def _settled(plan: Plan, problem: Problem) -> Plan:
    """What is left to settle: parts of a row, programs that share the rows, tiles in flight."""
    n_rows, n_cols, n_sms = problem.n_rows, problem.n_cols, problem.device.n_sms
    if plan.regime == "cluster" and not _clusters_fit(plan, problem):
        plan = _in_chunks(problem)
    if plan.regime == "grid":
        if _grid_fits(plan, problem):
            return _settled_grid(plan, problem)
        plan = _in_chunks(problem)
    chunks = _chunks(plan, problem)
    wide = plan.regime in ("looped", "split")
    if not wide:
        plan = dataclasses.replace(plan, chunks=chunks)
        plan = dataclasses.replace(
            plan, stages=max(1, min(plan.stages, _most_stages(plan, problem)))
        )
    if wide and not plan.part_cols:
        parts = 1
        may_split = plan.regime == "split" if "regime" in _forced else n_cols > SPLIT_COLS
        if may_split:
            parts = min(chunks, MOST_PARTS, max(1, PROGRAMS_PER_SM * n_sms // max(1, n_rows)))
        part_cols = -(-chunks // parts) * plan.block_cols
        plan = dataclasses.replace(
            plan, regime="split" if parts > 1 else plan.regime, part_cols=part_cols
        )
    if plan.part_cols % plan.block_cols:
        raise ValueError(
            f"part_cols must be a multiple of block_cols, {plan.block_cols}; got {plan.part_cols}"
        )
    if plan.part_cols and -(-n_cols // plan.part_cols) > MOST_PARTS:
        raise ValueError(
            f"part_cols must make at most {MOST_PARTS} parts of {n_cols} columns; got {plan.part_cols}"
        )
    if plan.regime == "cluster" and not plan.n_programs:
        clusters = plan.programs_per_sm * problem.device.resident(plan.cluster)
        if problem.direction == "forward":  # what a cluster does not load ahead, the next one does
            clusters = _even(clusters, n_rows) if plan.stages > 1 else n_rows
        plan = dataclasses.replace(plan, n_programs=max(1, min(clusters, n_rows)))
    elif problem.direction == "backward" and not plan.n_programs:
        itemsize = 8 if problem.computes_in_fp64 else 4
        affordable = PARTIAL_SUM_BYTES // (n_cols * itemsize * max(1, problem.n_column_sums))
        programs = -(-plan.programs_per_sm * n_sms // (chunks if wide else 1))
        tiles = -(-n_rows // plan.block_rows)
        if tiles <= FEW_TILES and not wide:
            programs = 1
        plan = dataclasses.replace(plan, n_programs=max(1, min(programs, tiles, affordable)))
    return plan


def _even(most: int, n_rows: int) -> int:
    """How many clusters share the rows: as many as run at once, or slightly fewer if then all have as many rows."""
    return next((n for n in range(most, most * 19 // 20, -1) if n_rows % n == 0), most)


def _chunks(plan: Plan, problem: Problem) -> int:
    """Tiles that a program's share of a row is taken in."""
    return -(-problem.n_cols // (plan.cluster * plan.block_cols))


def _clusters_fit(plan: Plan, problem: Problem) -> bool:
    """Whether this GPU has such clusters, and their programs registers for a share of a row."""
    if problem.computes_in_fp64:
        return False
    if "regime" in _forced:
        return True
    share = CLUSTER_BYTES[problem.direction] // problem.dtype.itemsize * plan.cluster
    fits = plan.source != "rules" or problem.n_cols <= share
    return fits and problem.device.resident(plan.cluster) > 0


def _grid_fits(plan: Plan, problem: Problem) -> bool:
    """Whether all programs of a grid run at once, and their mail is within the budget."""
    groups, arch = most_groups(plan, problem), problem.device.arch
    if problem.direction == "forward" or problem.computes_in_fp64 or groups == 0:
        return False
    n_parts = -(-problem.n_cols // _part_cols(plan, problem))
    if arch == "interpreter":  # programs run one after another: none can wait for the next
        return n_parts == 1
    spent = 8 * problem.n_rows * n_parts + 4 * groups * problem.n_cols * problem.n_column_sums
    if not arch.startswith("sm_") or spent > PARTIAL_SUM_BYTES:
        return False
    return "regime" in _forced or n_parts > 1


def _settled_grid(plan: Plan, problem: Problem) -> Plan:
    """Parts of nearly one width, groups that share the rows, and registers for all programs at once."""
    groups = plan.n_programs or most_groups(plan, problem)
    tiles = -(-problem.n_rows // plan.block_rows)
    threads = plan.num_warps * problem.device.warp_size * plan.programs_per_sm
    registers = REGISTERS // threads // 8 * 8
    return dataclasses.replace(
        plan,
        part_cols=_part_cols(plan, problem),
        stages=max(1, min(plan.stages, _most_stages(plan, problem))),
        n_programs=max(1, min(groups, tiles)),
        registers=registers if registers < 255 else 0,
    )


def most_groups(plan: Plan, problem: Problem) -> int:
    """A grid: how many groups of programs, each of which has a whole row, run at once."""
    n_parts = -(-problem.n_cols // _part_cols(plan, problem))
    return problem.device.n_sms * plan.programs_per_sm // n_parts


def _part_cols(plan: Plan, problem: Problem) -> int:
    """A grid: columns of one part. It begins at a multiple of 16 columns, so that accesses are of 16 bytes."""
    n_parts = -(-problem.n_cols // plan.block_cols)
    return min(plan.block_cols, -(-problem.n_cols // (16 * n_parts)) * 16)


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
