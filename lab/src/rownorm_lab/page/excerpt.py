"""The cases that the page and the plots show. A browser takes a second for each thousand or two of measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..data.measurements import Group, Measurement, Results, cases_of

MOST_ROWS = 5000  # of one page
Item = TypeVar("Item")
CaseRows = dict[str, Measurement]


def excerpt(results: Sequence[Results], most: int = MOST_ROWS) -> tuple[list[Results], str]:
    """At most about ``most`` rows, and a sentence that says what is left out; empty if nothing is.

    Cases are kept whole, with all providers. Each group keeps the same share of its cases, evenly spaced. Cases
    with an error come first, then those that a line chart draws.
    """
    everything = sum(len(one.rows) for one in results)
    if everything <= most:
        return list(results), ""
    kept = [replace(one, rows=_kept(one, most / everything)) for one in results]
    before, after = (sum(len(cases_of(one.rows)) for one in some) for some in (results, kept))
    return kept, (
        f"This page and the plots show {after:,} of {before:,} cases, because browsers are slow with more than "
        f"{most:,} records. The cases are evenly spaced over operations and shapes, and every figure of the page is "
        "about them. analysis.md covers all cases."
    )


def _kept(results: Results, share: float) -> list[Measurement]:
    """The rows of the cases that are shown, in their order."""
    groups: dict[Group, list[CaseRows]] = defaultdict(list)
    for case in cases_of(results.rows):
        groups[next(iter(case.values())).group].append(case)
    rows = []
    for cases in groups.values():
        number = max(1, round(share * len(cases)))
        for rank in range(3):
            chosen = _spaced([case for case in cases if _rank(case) == rank], number)
            rows += [row for case in chosen for row in case.values()]
            number -= len(chosen)
    shown = set(map(id, rows))
    return [row for row in results.rows if id(row) in shown]


def _rank(case: CaseRows) -> int:
    """0: it has an error. 1: a line chart draws it. 2: neither."""
    rows = case.values()
    if any(row.record.status in ("wrong", "failed") for row in rows):
        return 0
    return 1 if any(row.tallest or row.scaling for row in rows) else 2


def _spaced(items: Sequence[Item], number: int) -> list[Item]:
    """``number`` of the items, evenly spaced; all of them if they are fewer."""
    if number >= len(items):
        return list(items)
    return [items[i * len(items) // number] for i in range(number)]
