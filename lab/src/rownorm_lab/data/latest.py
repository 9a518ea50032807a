"""One record per case and provider: the newest one counts, and the others are accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from . import texts
from .records import Record

Key = TypeVar("Key", bound=Hashable)


class Unused(NamedTuple):
    """Records of one run that are not used, because another record of the same case and provider is."""

    run: str
    instead: str  # the run of the records that are used
    missing: bool  # whether it is newer, but the provider was missing
    records: int


def latest(keyed: Iterable[tuple[Key, Record]]) -> tuple[dict[Key, Record], list[Unused]]:
    """The newest record of each key, where "missing" counts as older than everything else; and what is not used."""
    ordered = sorted(keyed, key=lambda pair: (pair[1].status != "missing", pair[1].time))
    used = dict(ordered)
    unused: Counter[tuple[str, str, bool]] = Counter()
    for key, record in ordered:
        instead = used[key]
        if instead != record:  # a copy of the record that is used loses nothing
            missing = record.status == "missing" and record.time > instead.time
            unused[record.run, instead.run, missing] += 1
    return used, [Unused(*runs, number) for runs, number in sorted(unused.items())]


def unused_texts(unused: Sequence[Unused]) -> list[str]:
    """Which records are not used, and which are instead, in a sentence or two."""
    replaced, missing = ([one for one in unused if one.missing is newer] for newer in (False, True))
    found = []
    if replaced:
        total = sum(one.records for one in replaced)
        found.append(
            f"{_not_used(total)}, because there is a newer one of the same case and provider: "
            f"{', '.join(_replaced(replaced))}."
        )
    found += [
        f"{_not_used(one.records, f' of {_named(one.run)}')}, because the provider was missing in that run and was "
        f"measured in an older one, {_named(one.instead)}."
        for one in missing
    ]
    return found


def _not_used(records: int, whose: str = "") -> str:
    return f"{texts.count(records, 'record')}{whose} {'is' if records == 1 else 'are'} not used"


def _replaced(unused: Sequence[Unused]) -> list[str]:
    """``877 of run A (used: run B)``, for each run."""
    found = []
    for run in dict.fromkeys(one.run for one in unused):
        same = [one for one in unused if one.run == run]
        total = sum(one.records for one in same)
        used = texts.listed([_named(one.instead) for one in same])
        found.append(f"{total:,} of {_named(run)} (used: {used})")
    return found


def mixed_text(cases: Sequence[Iterable[Record]]) -> str:
    """How many cases combine measurements of several runs, in one sentence; empty if none does."""
    mixed = sum(len({record.run for record in case}) > 1 for case in cases)
    if not mixed:
        return ""
    have = "has" if mixed == 1 else "have"
    return (
        f"{texts.count(mixed, 'case')} {have} measurements of several runs. Speed-ups are ratios of medians; "
        "their intervals are paired by round within a run, and of all pairs of rounds between runs."
    )


def _named(run: str) -> str:
    return f"run {run}" if run else "a run without a name"
