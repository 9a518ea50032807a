"""Tuned tables: the settings that were fastest, with the figures measured, one file for each architecture.

A table is a file ``<arch>.json``: the architecture, device, versions and date of the measurement, and entries.
``files`` says where it is looked for. An entry has

    direction, center, itemsize, residual, option, max_cols
                      the problems it is for, up to a width. residual: bytes of a residual's element, 0 without one.
                      option: "", "activation" (any of them), the name of one activation, or "pre_bias"
    settings          fields of ``Plan``
    gb_per_s, ceiling_gb_per_s, measured_cols
                      the speed, and that of an elementwise kernel over the same bytes, at measured_cols columns
                      (max_cols if not given)
    runner_up         the next best: its settings and gb_per_s, which ``rownorm.explain`` prints. In the shipped table
                      it is the best of the settings next to the entry's (tools/runners_up.py). Its GB/s are the
                      entry's times the ratio of two times measured in turns, so they may be the larger ones
    reason            how the settings were chosen; ``rownorm.explain`` prints it
    experiment        entry of docs/experiments that justifies an entry with a residual or an option
    triton            the versions of Triton that it holds for, such as ">=3.9" or ">=3.6,<3.9"; without it, all, with
                      what ``compiler`` changes for versions other than that of the measurement

A problem takes the entry with the smallest ``max_cols`` that is at least its width. Two entries may have the same
``max_cols``: the first is looped and applies where the width is a multiple of its ``block_cols``, the second elsewhere.
Only entries that were measured with rows that are not aligned serve such rows (``capacity.is_unaligned``).
Entries for other versions of Triton than this one do not count, and one that names this version replaces the one
without versions for the same problems and width.

A problem with an option is looked up among the entries with the option and those of the plain norm. If the smallest
``max_cols`` is that of an entry of the plain norm only, that entry is adapted to the option (see the regimes).
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...program import ACTIVATIONS
from ..problem import OPTIONS, Direction, Problem
from . import compiler
from .capacity import has_unaligned_plans, is_unaligned, next_power_of_2
from .settings import REGIMES, Plan, in_words

TEXTS = ("arch", "device", "torch", "triton", "date", "method")
HEAD = (*TEXTS, "plans")
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
NO_RUNNER_UP = "the runner-up was not recorded"
LEVEL = 0.01  # figures that differ by less are called level
LIMIT = re.compile(r"(>=|<)(\d+)\.(\d+)")  # of the versions of Triton
MOST_WARPS = 32
MOST_ELEMENTS = 1 << 20  # of a tile: Triton's limit


@dataclass(frozen=True)
class Entry:
    """One entry of a table."""

    direction: Direction
    center: bool
    itemsize: int
    residual: int
    option: str
    max_cols: int
    settings: Mapping[str, Any] = dataclasses.field(hash=False)
    gb_per_s: int
    ceiling_gb_per_s: int | None = None
    measured_cols: int | None = None
    runner_up: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)
    reason: str = ""
    experiment: str = ""
    triton: str = ""

    def holds_for(self, version: tuple[int, ...]) -> bool:
        """Whether the entry is for this version of Triton, (major, minor)."""
        limits = [
            (way, (int(major), int(minor))) for way, major, minor in LIMIT.findall(self.triton)
        ]
        return all(version >= limit if way == ">=" else version < limit for way, limit in limits)

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
    def is_unaligned(self) -> bool:
        """Whether it was measured with rows that are not aligned."""
        cols = self.measured_cols or self.max_cols
        takes_registers = bool(self.residual or self.option)
        return has_unaligned_plans(self.direction, cols, self.itemsize, takes_registers)

    @property
    def is_looped(self) -> bool:
        return self.settings["regime"] == "looped"

    def __str__(self) -> str:
        norm = "LayerNorm" if self.center else "RMSNorm"
        words = [f"{norm} {self.direction}", f"{self.itemsize}-byte elements"]
        words += [f"{self.residual}-byte residual"] if self.residual else []
        words += [self.option] if self.option else []
        words += [f"up to {self.max_cols} columns"]
        return ", ".join((*words, f"Triton {self.triton}") if self.triton else words)


class Source(NamedTuple):
    """The content of one file. file: its path if it is a user's own, else empty."""

    device: str
    triton: str
    entries: tuple[Entry, ...]
    date: str = ""
    file: str = ""

    @property
    def version(self) -> tuple[int, ...]:
        """Triton's major and minor version."""
        return tuple(int(part) for part in self.triton.split(".")[:2])

    @property
    def name(self) -> str:
        """The source that a plan names."""
        return f"table for {self.device}" + (f" in {self.file}" if self.file else "")

    def __str__(self) -> str:
        whose = self.file or "rownorm's table"
        return f"{whose} (tuned on {self.device} with Triton {self.triton}, {self.date})"


class Table:
    """The entries of one architecture, indexed by kind and option.

    An entry of an earlier source replaces those of later sources for the same problems and width. Only entries for
    this version of Triton count.
    """

    def __init__(self, *sources: Source) -> None:
        self.sources = sources
        pairs: list[tuple[Entry, Source]] = []
        for source in sources:
            taken = {entry.order for entry, _ in pairs}
            pairs += [(entry, source) for entry in _in_use(source) if entry.order not in taken]
        pairs.sort(key=lambda pair: (pair[0].order, not pair[0].is_looped))
        self.entries = tuple(entry for entry, _ in pairs)
        of_kind: dict[tuple[Any, ...], list[Entry]] = {}
        for entry in self.entries:
            of_kind.setdefault(entry.kind, []).append(entry)
        self._index: dict[tuple[Any, ...], list[_Indexed]] = {}
        for entry, source in pairs:
            measured_with = entry.triton or source.triton
            reason = f"tuned for {_reason(entry, of_kind[entry.kind])} with Triton {measured_with}"
            reason += f"; {entry.reason}" if entry.reason else ""
            reason += f"; experiment {entry.experiment}" if entry.experiment else ""
            second = _second(entry)
            plan = Plan(**entry.settings, source=source.name, reason=reason, second=second)
            # An entry that names versions needs no change for them.
            version = compiler.VERSION if entry.triton else source.version
            self._index.setdefault((entry.kind, entry.option, entry.is_unaligned), []).append(
                _Indexed(entry, plan, version)
            )

    def find(self, problem: Problem, residual: int, option: str) -> Plan | None:
        """The plan of the entry for this problem, for a residual of so many bytes and one option or none; else None.

        None, too, where an entry of the plain norm is nearer in width than any with the option.
        """
        found = self._found(problem, residual, option)
        if found is None:
            return None
        plan = found.plan
        if plan.regime in ("tile", "resident"):
            block_cols = min(plan.block_cols, next_power_of_2(problem.n_cols))
            if block_cols < plan.block_cols:
                plan = dataclasses.replace(plan, block_cols=block_cols)
        return compiler.adjusted(plan, problem, found.version)

    def entry(self, problem: Problem, residual: int, option: str) -> Entry | None:
        """The entry whose plan ``find`` returns."""
        found = self._found(problem, residual, option)
        return found and found.entry

    def _found(self, problem: Problem, residual: int, option: str) -> _Indexed | None:
        if problem.computes_in_fp64:
            return None
        kind = (problem.direction, problem.center, problem.dtype.itemsize, residual)
        # Entries for this activation come before those for any activation, and the plain norm's come last.
        this_one = (problem.activation,) if option == "activation" else ()
        ranked = [
            self._nearest((kind, name, is_unaligned(problem)), problem.n_cols, rank)
            for rank, name in enumerate(dict.fromkeys((*this_one, option, "")))
        ]
        nearest = min(filter(None, ranked), key=lambda each: each[0], default=None)
        if nearest is None:
            return None
        _, found = nearest
        entry = found.entry
        if (option and not entry.option) or not compiler.trusts(
            entry.direction, entry.option, found.version
        ):
            return None
        return found

    def _nearest(
        self, kind: tuple[Any, ...], n_cols: int, rank: int
    ) -> tuple[tuple[Any, ...], _Indexed] | None:
        """The entry of this kind, option and alignment with the next larger width, after its sort key; None if all are
        narrower.

        The nearest width comes first. At one width, a looped plan whose chunks the row does not fill comes last; then
        the lower rank comes first.
        """
        indexed = self._index.get(kind, [])
        first = bisect.bisect_left(indexed, n_cols, key=lambda each: each.entry.max_cols)
        found = None
        for each in indexed[first : first + 2]:
            is_unfilled = each.entry.is_looped and n_cols % each.plan.block_cols != 0
            key = (each.entry.max_cols, is_unfilled, rank)
            if found is None or key < found[0]:
                found = (key, each)
        return found


class _Indexed(NamedTuple):
    """An entry, its plan, and the version of Triton that it was tuned with, or that it names."""

    entry: Entry
    plan: Plan
    version: tuple[int, ...]


def _in_use(source: Source) -> Iterable[Entry]:
    """The entries for this version of Triton: one that names it before one for all versions."""
    found: dict[tuple[Any, ...], Entry] = {}
    for entry in sorted(source.entries, key=lambda entry: bool(entry.triton)):
        if entry.holds_for(compiler.VERSION):
            found[entry.order, entry.is_looped] = entry
    return found.values()


def _reason(entry: Entry, entries: Iterable[Entry]) -> str:
    """The widths and the figures of an entry, given all entries of its kind."""
    names = (entry.option, "activation", "") if entry.option in ACTIVATIONS else (entry.option, "")
    narrower = [
        other.max_cols
        for other in entries
        if other.option in names and other.max_cols < entry.max_cols
    ]
    beside = [entry.option] if entry.option else []
    beside += [f"a {entry.residual}-byte residual"] if entry.residual else []
    widths = f"{max(narrower, default=0) + 1} to {entry.max_cols} columns"
    widths += " that fill their chunks" if entry.is_looped else ""
    speed = f"{entry.gb_per_s} GB/s"
    if entry.ceiling_gb_per_s:
        speed += f", {100 * entry.gb_per_s / entry.ceiling_gb_per_s:.0f}% of the ceiling"
    at = entry.measured_cols or entry.max_cols
    return f"{', '.join((*beside, widths))}: {speed}, at {at} columns"


def _second(entry: Entry) -> str:
    """The runner-up of an entry, in words."""
    if entry.runner_up is None:
        return NO_RUNNER_UP
    words = f"{in_words(entry.runner_up['settings'])}, {entry.runner_up['gb_per_s']} GB/s"
    ratio = entry.runner_up["gb_per_s"] / entry.gb_per_s
    if ratio > 1 + LEVEL:
        return words + ", faster when measured later, at this width only"
    return words + (", level" if ratio > 1 - LEVEL else "")


def parse(table: Any, name: str, arch: str, file: str = "") -> Source:
    """The content of a file from its JSON object. ValueError names the file, the entry and what is wrong with it.

    name: of the file, for the message. arch: the architecture that it must be for. file: see ``Source``.
    """
    if not isinstance(table, dict) or set(table) != set(HEAD):
        got = ", ".join(map(str, table)) if isinstance(table, dict) else type(table).__name__
        raise ValueError(f"{name}: must have the keys {', '.join(HEAD)}; got {got}")
    for text in TEXTS:
        if not isinstance(table[text], str):
            raise ValueError(f"{name}: {text} must be a text; got {table[text]!r}")
    if table["arch"] != arch:
        raise ValueError(f"{name}: is for {table['arch']}, not for {arch}")
    if not re.match(r"\d+\.\d+", table["triton"]):
        raise ValueError(f"{name}: triton must be a version such as 3.6.0; got {table['triton']!r}")
    if not isinstance(table["plans"], list):
        raise ValueError(f"{name}: plans must be a list of entries")
    entries: list[Entry] = []
    for number, fields in enumerate(table["plans"]):
        try:
            entry = _entry(fields)
            if entries:
                _check_order(entries[-1], entry)
        except ValueError as error:
            raise ValueError(f"{name}: entry {number}, {json.dumps(fields)}: {error}") from None
        entries.append(entry)
    return Source(table["device"], table["triton"], tuple(entries), table["date"], file)


def _entry(fields: Any) -> Entry:
    _check_object("an entry", fields)
    known = {field.name: field for field in dataclasses.fields(Entry)}
    needed = [name for name, field in known.items() if field.default is dataclasses.MISSING]
    _check_names(fields, known, needed)
    for name, choices in CHOICES.items():
        if fields[name] not in choices or type(fields[name]) is not type(choices[0]):
            raise ValueError(f"{name} must be one of {choices}; got {fields[name]!r}")
    for name in ("max_cols", "gb_per_s", "ceiling_gb_per_s", "measured_cols"):
        if name in fields:
            _check_int(name, fields[name], 1)
    for name in ("reason", "experiment", "triton"):
        if not isinstance(fields.get(name, ""), str):
            raise ValueError(f"{name} must be a text; got {fields[name]!r}")
    if not re.fullmatch(rf"({LIMIT.pattern}(,(?!$)|$))*", fields.get("triton", "")):
        raise ValueError(f"triton must be such as >=3.6,<3.9; got {fields['triton']!r}")
    _check_settings(fields["settings"], fields["direction"])
    if "runner_up" in fields:
        _check_object("runner_up", fields["runner_up"])
        _check_names(fields["runner_up"], ("settings", "gb_per_s"), ("settings", "gb_per_s"))
        _check_int("gb_per_s", fields["runner_up"]["gb_per_s"], 1)
        _check_settings(fields["runner_up"]["settings"], fields["direction"])
        if fields["runner_up"]["settings"] == fields["settings"]:
            raise ValueError("runner_up must have other settings than the entry")
    return Entry(**fields)


def _check_settings(settings: Any, direction: str) -> None:
    _check_object("settings", settings)
    _check_names(settings, SETTINGS, NEEDED)
    regime = settings["regime"]
    if regime not in REGIMES:
        raise ValueError(f"regime must be one of {REGIMES}; got {regime!r}")
    for name, value in settings.items():
        if name in SWITCHES and not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false; got {value!r}")
        if name in (*COUNTS, "pipeline_depth", "maxnreg"):
            _check_int(name, value, 1 if name in COUNTS else 0)
        if name in POWERS_OF_2 and value & (value - 1):
            raise ValueError(f"{name} must be a power of two; got {value}")
    if settings["num_warps"] > MOST_WARPS:
        raise ValueError(f"num_warps must be at most {MOST_WARPS}; got {settings['num_warps']}")
    if settings["block_rows"] * settings["block_cols"] > MOST_ELEMENTS:
        raise ValueError(f"block_rows * block_cols must be at most {MOST_ELEMENTS}")
    if regime == "grid" and direction == "forward":
        raise ValueError("grid is a regime of backward")
    if settings.get("maxnreg") and direction == "backward" and regime != "grid":
        raise ValueError(
            f"maxnreg must be 0 in backward except in a grid; got {settings['maxnreg']}"
        )


def _check_object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object with names and values; got {value!r}")


def _check_names(fields: Iterable[str], known: Iterable[str], needed: Iterable[str]) -> None:
    unknown, missing = set(fields) - set(known), set(needed) - set(fields)
    if unknown:
        raise ValueError(f"unknown {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if missing:
        raise ValueError(f"{', '.join(sorted(missing))} must be given")


def _check_int(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more; got {value!r}")


def _check_order(before: Entry, entry: Entry) -> None:
    if before.order > entry.order:
        raise ValueError(f"must come before the entry for {before}")
    same = before.order == entry.order and before.triton == entry.triton
    if same and (not before.is_looped or entry.is_looped):
        raise ValueError(
            "of two entries for one width, the first must be looped and the second not"
        )
