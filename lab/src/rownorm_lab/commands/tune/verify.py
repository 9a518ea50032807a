"""Rows of the shipped table, searched again: is what the tuner finds as fast as what is shipped?"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from rownorm.inside import Device, Entry, Table, in_words, parse

from ...data.tables import columns
from ...data.texts import count
from ...data.tunings import Verified
from .candidates import DEFAULTS, Settings
from .search import Search, width_between
from .table import TableRow, read_rows, study_of

MOST = 1.01  # time found over time shipped
SEED = 0


def drawn(file: Path, device: Device, n: int, seed: int = SEED) -> list[TableRow]:
    """``n`` rows of a table of all regimes, forward and backward, in turns; the same ones for the same seed.

    ``measured_cols`` of each is a width at which planning uses the row. Rows that this version of Triton does not use
    are not drawn, nor those that were measured between two widths: they are not the fastest of their candidates.
    """
    table = Table(parse(json.loads(file.read_text()), file.name, device.arch))
    groups: dict[tuple[str, str], list[TableRow]] = {}
    for row in (rows := read_rows(file)):
        if "measured_cols" not in row and (n_cols := used_at(row, table, device)):
            group = groups.setdefault((row["direction"], row["settings"]["regime"]), [])
            group.append(row | {"measured_cols": n_cols})
    order = random.Random(seed)
    shuffled = [order.sample(group, len(group)) for group in groups.values()]
    turns = [group[turn] for turn in range(len(rows)) for group in shuffled if turn < len(group)]
    return turns[:n]


def used_at(row: TableRow, table: Table, device: Device) -> int | None:
    """A width at which planning uses a row: its widest, or one between if that is for another row; None if neither.

    Of two rows for one width, the second is for columns that do not fill the chunks of the first.
    """
    for n_cols in (row["max_cols"], width_between(row["max_cols"])):
        problem = study_of(row, n_cols).problem(device)
        if table.entry(problem, row["residual"], row["option"]) == Entry(**row):
            return n_cols
    return None


def verified(search: Search, row: TableRow) -> Verified:
    """Search a row again and time what was found beside what is shipped."""
    study, shipped = study_of(row, row.get("measured_cols")), row["settings"]
    found = search.best(study).settings
    ratio = 1.0
    if not same(found, shipped):
        here, there = search.beside(study, found, shipped)
        ratio = here / there
    return Verified(study=study.key, shipped=shipped, found=found, ratio=ratio)


def same(a: Settings, b: Settings) -> bool:
    """Whether two settings make the same plan."""
    return DEFAULTS | a == DEFAULTS | b


def lines_of(several: Sequence[Verified]) -> list[str]:
    """The rows for a terminal, and how many are within the limit."""
    lines = [
        [
            one.study,
            f"{one.ratio:.3f}" if not same(one.found, one.shipped) else "same plan",
            in_words(one.found),
            in_words(one.shipped),
        ]
        for one in several
    ]
    good = sum(one.ratio <= MOST for one in several)
    return [
        *columns(["row of the table", "found / shipped", "found", "shipped"], lines),
        f"{good} of {count(len(several), 'row')}: found settings take at most {MOST} of the shipped settings' time",
    ]
