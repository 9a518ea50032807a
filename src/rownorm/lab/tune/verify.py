"""Rows of the shipped table, searched again: is what the tuner finds as fast as what is shipped?"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..cli.tables import columns
from ..texts import count
from .candidates import DEFAULTS, Settings
from .saved import Verified
from .search import Search, in_words
from .table import TableRow, study_of

MOST = 1.01  # time found over time shipped
SEED = 0


def drawn(rows: Sequence[TableRow], n: int, seed: int = SEED) -> list[TableRow]:
    """``n`` rows of all regimes, forward and backward, in turns; the same ones for the same seed.

    Second rows of a width (``measured_cols``) are not drawn: they are not the fastest of their candidates.
    """
    groups: dict[tuple[str, str], list[TableRow]] = {}
    for row in rows:
        if "measured_cols" not in row:
            groups.setdefault((row["direction"], row["settings"]["regime"]), []).append(row)
    order = random.Random(seed)
    shuffled = [order.sample(group, len(group)) for group in groups.values()]
    turns = [group[turn] for turn in range(len(rows)) for group in shuffled if turn < len(group)]
    return turns[:n]


def verified(search: Search, row: TableRow) -> Verified:
    """Search a row again and time what was found beside what is shipped."""
    study, shipped = study_of(row), row["settings"]
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
