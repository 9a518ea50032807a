"""Tuned tables: the settings that were fastest, with the figures measured, one file for each architecture.

A table is ``tables/<arch>.json``: the device, versions and date of the measurement, and entries. An entry has

    direction, center, itemsize, residual, option, max_cols
                      the problems it is for, up to a width. residual: bytes of a residual's element, 0 without one.
                      option: "", "activation" (any of them), the name of one activation, or "pre_bias"
    settings          fields of ``Plan``
    gb_per_s, ceiling_gb_per_s, measured_cols
                      the speed, and that of an elementwise kernel over the same bytes, at measured_cols columns
                      (max_cols if not given)
    experiment        entry of docs/experiments that justifies an entry with a residual or an option

A problem takes the entry with the smallest ``max_cols`` that is at least its width. Two entries may have the same
``max_cols``: the first is looped and applies where the width is a multiple of its ``block_cols``, the second elsewhere.

A problem with an option is looked up among the entries with the option and those of the plain norm. If the smallest
``max_cols`` is that of an entry of the plain norm only, that entry is adapted to the option (see the regimes).
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ...program import ACTIVATIONS
from ..problem import OPTIONS, Problem
from . import compiler
from .capacity import next_power_of_2
from .settings import REGIMES, Plan

HEAD = ("device", "torch", "triton", "date", "method", "plans")
CHOICES: dict[str, tuple[Any, ...]] = {
    "direction": ("forward", "backward"),
    "center": (False, True),
    "itemsize": (2, 4),
    "residual": (0, 2, 4),
    "option": ("", *OPTIONS, *ACTIVATIONS),
}
POWERS_OF_2 = ("block_rows", "block_cols", "num_warps", "cluster_size")
COUNTS = (*POWERS_OF_2, "programs_per_sm", "num_stages")
SWITCHES = ("prefetch_parameters", "fast_rstd")
SETTINGS = ("regime", *COUNTS, "pipeline_depth", "maxnreg", *SWITCHES)
NEEDED = ("regime", "block_rows", "block_cols", "num_warps")


@dataclass(frozen=True)
class Row:
    """One entry of a table."""

    direction: str
    center: bool
    itemsize: int
    residual: int
    option: str
    max_cols: int
    settings: Mapping[str, Any] = dataclasses.field(hash=False)
    gb_per_s: int
    ceiling_gb_per_s: int | None = None
    measured_cols: int | None = None
    experiment: str = ""

    @property
    def kind(self) -> tuple[Any, ...]:
        """The problems that it is for, apart from width and option."""
        return self.direction, self.center, self.itemsize, self.residual

    @property
    def order(self) -> tuple[Any, ...]:
        """Entries of a table are in this order."""
        backward = self.direction == "backward"
        return self.itemsize, self.residual, self.option, backward, self.center, self.max_cols

    @property
    def is_looped(self) -> bool:
        return self.settings["regime"] == "looped"

    def __str__(self) -> str:
        norm = "LayerNorm" if self.center else "RMSNorm"
        words = [f"{norm} {self.direction}", f"{self.itemsize}-byte elements"]
        words += [f"{self.residual}-byte residual"] if self.residual else []
        words += [self.option] if self.option else []
        return ", ".join((*words, f"up to {self.max_cols} columns"))


class Table:
    """The entries of one architecture, indexed by kind and option."""

    def __init__(self, device: str, triton: str, rows: Iterable[Row]) -> None:
        self.device = device
        self.version = tuple(int(part) for part in triton.split(".")[:2])
        self.rows = tuple(rows)
        of_kind: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            of_kind.setdefault(row.kind, []).append(row)
        self._index: dict[tuple[Any, ...], list[tuple[Row, Plan]]] = {}
        for row in self.rows:
            reason = f"tuned for {_reason(row, of_kind[row.kind])} with Triton {triton}"
            reason += f"; experiment {row.experiment}" if row.experiment else ""
            plan = Plan(**row.settings, source=f"table for {device}", reason=reason)
            self._index.setdefault((row.kind, row.option), []).append((row, plan))

    def find(self, problem: Problem, residual: int, option: str) -> Plan | None:
        """The plan of the entry for this problem, for a residual of so many bytes and one option or none; else None.

        None, too, where an entry of the plain norm is nearer in width than any with the option.
        """
        if problem.computes_in_fp64:
            return None
        kind = (problem.direction, problem.center, problem.dtype.itemsize, residual)
        # Entries for this activation come before those for any activation, and the plain norm's come last.
        this_one = (problem.activation,) if option == "activation" else ()
        ranked = [
            self._nearest(kind, name, problem.n_cols, rank)
            for rank, name in enumerate(dict.fromkeys((*this_one, option, "")))
        ]
        nearest = min(filter(None, ranked), key=lambda each: each[0], default=None)
        if nearest is None:
            return None
        _, row, plan = nearest
        if option and not row.option:
            return None
        if not compiler.trusts(row.direction, row.option, self.version):
            return None
        if plan.regime in ("tile", "resident"):
            block_cols = min(plan.block_cols, next_power_of_2(problem.n_cols))
            if block_cols < plan.block_cols:
                plan = dataclasses.replace(plan, block_cols=block_cols)
        return compiler.adjusted(plan, problem, self.version)

    def _nearest(
        self, kind: tuple[Any, ...], option: str, n_cols: int, rank: int
    ) -> tuple[tuple[Any, ...], Row, Plan] | None:
        """The entry with this option and the next larger width, after its sort key; None if all are narrower.

        The nearest width comes first. At one width, a looped plan whose chunks the row does not fill comes last; then
        the lower rank comes first.
        """
        rows = self._index.get((kind, option), [])
        first = bisect.bisect_left(rows, n_cols, key=lambda pair: pair[0].max_cols)
        found = None
        for row, plan in rows[first : first + 2]:
            key = (row.max_cols, row.is_looped and n_cols % plan.block_cols != 0, rank)
            if found is None or key < found[0]:
                found = (key, row, plan)
        return found


def _reason(row: Row, rows: Iterable[Row]) -> str:
    """The widths and the figures of an entry, given all entries of its kind."""
    names = (row.option, "activation", "") if row.option in ACTIVATIONS else (row.option, "")
    narrower = [
        other.max_cols for other in rows if other.option in names and other.max_cols < row.max_cols
    ]
    beside = [row.option] if row.option else []
    beside += [f"a {row.residual}-byte residual"] if row.residual else []
    widths = f"{max(narrower, default=0) + 1} to {row.max_cols} columns"
    widths += " that fill their chunks" if row.is_looped else ""
    speed = f"{row.gb_per_s} GB/s"
    if row.ceiling_gb_per_s:
        speed += f", {100 * row.gb_per_s / row.ceiling_gb_per_s:.0f}% of the ceiling"
    at = row.measured_cols or row.max_cols
    return f"{', '.join((*beside, widths))}: {speed}, at {at} columns"


@functools.cache
def table_of(arch: str) -> Table | None:
    """The tuned table of an architecture, read and checked once; None if there is none."""
    file = resources.files(__package__) / "tables" / f"{arch}.json"
    return parse(json.loads(file.read_text()), f"{arch}.json") if file.is_file() else None


def parse(table: Mapping[str, Any], name: str) -> Table:
    """A table from its JSON object. ValueError names the file, the entry and what is wrong with it."""
    if set(table) != set(HEAD):
        raise ValueError(f"{name}: must have the keys {', '.join(HEAD)}; got {', '.join(table)}")
    rows: list[Row] = []
    for number, fields in enumerate(table["plans"]):
        try:
            row = _row(fields)
            if rows:
                _check_order(rows[-1], row)
        except ValueError as error:
            raise ValueError(f"{name}: entry {number}, {json.dumps(fields)}: {error}") from None
        rows.append(row)
    return Table(table["device"], table["triton"], rows)


def _row(fields: Mapping[str, Any]) -> Row:
    known = {field.name: field for field in dataclasses.fields(Row)}
    needed = [name for name, field in known.items() if field.default is dataclasses.MISSING]
    _check_names(fields, known, needed)
    for name, choices in CHOICES.items():
        if fields[name] not in choices or type(fields[name]) is not type(choices[0]):
            raise ValueError(f"{name} must be one of {choices}; got {fields[name]!r}")
    for name in ("max_cols", "gb_per_s", "ceiling_gb_per_s", "measured_cols"):
        if name in fields:
            _check_int(name, fields[name], 1)
    settings = fields["settings"]
    _check_names(settings, SETTINGS, NEEDED)
    if settings["regime"] not in REGIMES:
        raise ValueError(f"regime must be one of {REGIMES}; got {settings['regime']!r}")
    for name, value in settings.items():
        if name in SWITCHES and not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false; got {value!r}")
        if name in (*COUNTS, "pipeline_depth", "maxnreg"):
            _check_int(name, value, 1 if name in COUNTS else 0)
        if name in POWERS_OF_2 and value & (value - 1):
            raise ValueError(f"{name} must be a power of two; got {value}")
    if (
        settings.get("maxnreg")
        and fields["direction"] == "backward"
        and settings["regime"] != "grid"
    ):
        raise ValueError(
            f"maxnreg must be 0 in backward except in a grid; got {settings['maxnreg']}"
        )
    return Row(**fields)


def _check_names(fields: Iterable[str], known: Iterable[str], needed: Iterable[str]) -> None:
    unknown, missing = set(fields) - set(known), set(needed) - set(fields)
    if unknown:
        raise ValueError(f"unknown {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if missing:
        raise ValueError(f"{', '.join(sorted(missing))} must be given")


def _check_int(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more; got {value!r}")


def _check_order(before: Row, row: Row) -> None:
    if before.order > row.order:
        raise ValueError(f"must come before the entry for {before}")
    if before.order == row.order and (not before.is_looped or row.is_looped):
        raise ValueError(
            "of two entries for one width, the first must be looped and the second not"
        )
