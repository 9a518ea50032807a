"""Problem -> Plan: a tuned table for the architecture where there is one, else ``rules``; then what ``options`` change;
then what the number of rows decides.

Rows that fit one program are planned by their width alone, so a new number of rows compiles nothing, whether they are
held or, where the table has it so, read again. So are wider rows, where the GPU has clusters or they are shared by a
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
from .options import with_options, with_residual
from .problem import Plan, Problem, Regime
from .rules import (
    CLUSTER_BYTES,
    chunks_of,
    filled_chunks,
    from_rules,
    in_a_grid,
    in_chunks,
    most_stages,
    next_power_of_2,
)

REGISTERS = 65536  # of an NVIDIA SM
# Columns up to which a row is worth no second launch, however few rows there are.
SPLIT_COLS = 16384
MOST_PARTS = 512  # parts of one row
PROGRAMS_PER_SM = 4  # what a wide row is split for
FEW_TILES = 8  # up to so many are backward of one program, which needs no kernel to add up its sums
PARTIAL_SUM_BYTES = 64 << 20  # what backward may allocate for partial sums, and a grid's mail

_forced: dict[str, Any] = {}
_forgetters: list[Callable[[], None]] = []


def plan(problem: Problem) -> Plan:
    """The plan for a problem: a pure function of it (and of ``force``, in tests and tuners)."""
    regime: Regime | None = _forced.get("regime")
    chosen = from_rules(problem, regime) if regime else _tuned(problem)
    if _forced:
        chosen = dataclasses.replace(chosen, **_forced, source="forced")
    return _settled(chosen, problem, regime)


def _tuned(problem: Problem) -> Plan:
    """The table's plan for just this; else that for a norm with less to it, or the rules', made fit for the rest."""
    residual = problem.residual_dtype.itemsize if problem.residual_dtype else 0
    exact = _from_table(problem, residual, problem.option)
    if exact is not None:
        return exact
    chosen = _from_table(problem, residual, "")
    if chosen is None:
        chosen = with_residual(_from_table(problem, 0, "") or from_rules(problem), problem)
    return with_options(chosen, problem)


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


def _from_table(problem: Problem, residual: int, option: str) -> Plan | None:
    """The row of the architecture's table for this width, residuals of so many bytes (0: none) and one of OPTIONS or
    none of them, if there is one. An activation may have rows of its own beside those for all of them. An option need
    not have rows for every width: where one of the plain norm is nearer, there is none.

    A plan that takes rows in chunks was found with rows that fill them. It may have another beside it, for the others.
    """
    table = _table(problem.device.arch)
    if table is None or problem.computes_in_fp64:
        return None
    of_its_compiler = table["triton"].startswith("{}.{}.".format(*VERSION))
    names = (*((problem.activation,) if option == "activation" else ()), option, "")
    kind = (problem.direction, problem.center, problem.dtype.itemsize, residual)
    rows = [row for row in table["plans"] if _kind(row) == kind and row["option"] in names]
    if not rows:
        return None

    def rank(row: dict[str, Any]) -> tuple[Any, ...]:
        """The nearest width first. Chunks that would not be filled come last; those that are, before their like."""
        in_chunks = row["settings"]["regime"] == "looped"
        filled = in_chunks and problem.n_cols % row["settings"]["block_cols"] == 0
        return row["max_cols"], in_chunks and not filled, names.index(row["option"]), not filled

    # Rows are in order of width. The last one serves any width beyond it if it takes rows in chunks.
    fitting = [row for row in rows if problem.n_cols <= row["max_cols"]] or rows[-1:]
    row = min(fitting, key=rank)
    if problem.n_cols > row["max_cols"] and (option or row["settings"]["regime"] != "looped"):
        return None
    if option and not row["option"]:
        return None
    if option == "pre_bias" and problem.direction == "backward" and not of_its_compiler:
        return None  # a third sum takes the last registers; another compiler may need one more
    settings = {"block_cols": next_power_of_2(row["max_cols"]), **row["settings"]}
    if not of_its_compiler:
        settings["maxnreg"] = 0  # a limit is good for the compiler it was found with
    if settings["regime"] in ("tile", "resident"):
        settings["block_cols"] = min(settings["block_cols"], next_power_of_2(problem.n_cols))
    return Plan(**settings, source=f"table for {table['device']}")


def _kind(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row of a table is for, apart from its width and option."""
    return (row["direction"], row["center"], row["itemsize"], row["residual"])


@functools.cache
def _table(arch: str) -> dict[str, Any] | None:
    """The tuned table of an architecture, read once."""
    file = resources.files(__package__) / "tables" / f"{arch}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def _may_split(plan: Plan, problem: Problem) -> bool:
    """Whether few rows of this width are shared by programs. Not where one loads all of a row at once: another kernel
    would have to be compiled for them.
    """
    at_once = problem.direction == "forward" and filled_chunks(plan, problem)
    return problem.n_cols > SPLIT_COLS and not at_once


def _settled(plan: Plan, problem: Problem, forced: Regime | None = None) -> Plan:
    """What is left to settle: parts of a row, programs that share the rows, tiles in flight."""
    n_rows, n_cols, n_sms = problem.n_rows, problem.n_cols, problem.device.n_sms
    if plan.regime == "cluster" and not _clusters_fit(plan, problem, forced):
        forward = problem.direction == "forward"
        plan = in_chunks(problem) if forward else with_options(in_a_grid(problem), problem)
    if plan.regime == "cluster" and problem.direction == "forward":
        plan = dataclasses.replace(plan, fast_rstd=_few_registers(problem))
    if plan.regime == "grid":
        if _grid_fits(plan, problem, forced):
            return _settled_grid(plan, problem)
        plan = in_chunks(problem)
    chunks = chunks_of(plan, problem)
    wide = plan.regime in ("looped", "split")
    if not wide:
        plan = dataclasses.replace(plan, chunks=chunks)
        plan = dataclasses.replace(
            plan, num_stages=max(1, min(plan.num_stages, most_stages(plan, problem)))
        )
    if wide and not plan.part_cols:
        parts = 1
        may_split = plan.regime == "split" if forced else _may_split(plan, problem)
        if may_split:
            parts = min(chunks, MOST_PARTS, max(1, PROGRAMS_PER_SM * n_sms // max(1, n_rows)))
        part_cols = -(-chunks // parts) * plan.block_cols
        plan = dataclasses.replace(
            plan, regime="split" if parts > 1 else plan.regime, part_cols=part_cols
        )
    if plan.regime == "looped" and problem.direction == "forward":
        plan = dataclasses.replace(plan, chunks=filled_chunks(plan, problem))
    if plan.part_cols % plan.block_cols:
        raise ValueError(
            f"part_cols must be a multiple of block_cols, {plan.block_cols}; got {plan.part_cols}"
        )
    if plan.part_cols and -(-n_cols // plan.part_cols) > MOST_PARTS:
        raise ValueError(
            f"part_cols must make at most {MOST_PARTS} parts of {n_cols} columns; got {plan.part_cols}"
        )
    if plan.regime == "cluster" and problem.direction == "forward" and plan.num_stages == 1:
        # What a cluster does not load ahead, the next one does: each has one row.
        plan = dataclasses.replace(plan, n_programs=max(1, n_rows))
    elif plan.regime == "cluster" and not plan.n_programs:
        clusters = problem.device.resident(plan.cluster_size, plan.programs_per_sm)
        if problem.direction == "forward":
            clusters = _even(clusters, n_rows)
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


def _clusters_fit(plan: Plan, problem: Problem, forced: Regime | None) -> bool:
    """Whether this GPU has such clusters, and their programs registers for a share of a row."""
    if problem.computes_in_fp64:
        return False
    if forced:
        return True
    share = CLUSTER_BYTES[problem.direction] // problem.dtype.itemsize * plan.cluster_size
    fits = plan.source != "rules" or problem.n_cols <= share
    return fits and problem.device.resident(plan.cluster_size) > 0


def _few_registers(problem: Problem) -> bool:
    """Forward of a cluster: whether the calls that make rstd want registers that it needs, as beside a residual. With a
    pre_bias or an activation, too, the compiler spills without the calls, not with them.
    """
    plain = not problem.pre_bias and problem.activation is None
    return plain and problem.residual_dtype is not None


def _grid_fits(plan: Plan, problem: Problem, forced: Regime | None) -> bool:
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
    return forced is not None or n_parts > 1


def _settled_grid(plan: Plan, problem: Problem) -> Plan:
    """Parts of nearly one width, groups that share the rows, and registers for all programs at once."""
    if plan.block_rows != 1:
        raise ValueError(f"block_rows must be 1 in a grid; got {plan.block_rows}")
    groups = plan.n_programs or most_groups(plan, problem)
    threads = plan.num_warps * problem.device.warp_size * plan.programs_per_sm
    registers = REGISTERS // threads // 8 * 8
    return dataclasses.replace(
        plan,
        part_cols=_part_cols(plan, problem),
        num_stages=max(1, min(plan.num_stages, most_stages(plan, problem))),
        n_programs=max(1, min(groups, problem.n_rows)),
        maxnreg=registers if registers < 255 else 0,
    )


def most_groups(plan: Plan, problem: Problem) -> int:
    """A grid: how many groups of programs, each of which has a whole row, run at once."""
    n_parts = -(-problem.n_cols // _part_cols(plan, problem))
    return problem.device.n_sms * plan.programs_per_sm // n_parts


def _part_cols(plan: Plan, problem: Problem) -> int:
    """A grid: columns of one part. It begins at a multiple of 16 columns, so that accesses are of 16 bytes."""
    n_parts = -(-problem.n_cols // plan.block_cols)
    return min(plan.block_cols, -(-problem.n_cols // (16 * n_parts)) * 16)
