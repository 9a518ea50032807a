"""One record per case and provider: the newest one counts, and the others are accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from .. import texts
from .records import Record

Key = TypeVar("Key", bound=Hashable)


class Unused(NamedTuple):
    """Records of one run that are not used, because another record of the same case and provider is."""

    run: str
    instead: str  # the run of the records that are used
    missing: bool  # whether the provider was missing in the run that is not used
    records: int


def latest(keyed: Iterable[tuple[Key, Record]]) -> tuple[dict[Key, Record], list[Unused]]:
    """The newest record of each key, where "missing" counts as older than everything else; and what is not used."""
    ordered = sorted(keyed, key=lambda pair: (pair[1].status != "missing", pair[1].time))
    used = dict(ordered)
    unused: Counter[tuple[str, str, bool]] = Counter()
    for key, record in ordered:
        instead = used[key]
        if instead is not record:
            missing = record.status == "missing" and instead.status != "missing"
            unused[record.run, instead.run, missing] += 1
    return used, [Unused(*runs, number) for runs, number in sorted(unused.items())]


def unused_text(unused: Unused) -> str:
    """Which records are not used, and which are instead, in one sentence."""
    records = f"{texts.count(unused.records, 'record')} of {_named(unused.run)}"
    verb = "is" if unused.records == 1 else "are"
    if unused.missing:
        why = f"the provider was missing there, and {_named(unused.instead)} measured it"
    elif unused.instead == unused.run:
        why = "that run has a newer one of the same case and provider"
    else:
        why = f"{_named(unused.instead)} has a newer one of the same case and provider"
    return f"{records} {verb} not used, because {why}."


def mixed_text(cases: Sequence[Iterable[Record]]) -> str:
    """How many cases combine measurements of several runs, in one sentence; empty if none does."""
    mixed = sum(len({record.run for record in case}) > 1 for case in cases)
    if not mixed:
        return ""
    have = "has" if mixed == 1 else "have"
    return (
        f"{texts.count(mixed, 'case')} {have} measurements of several runs. Speed-ups between runs are ratios of "
        "medians; within a run they are paired by round."
    )


def _named(run: str) -> str:
    return f"run {run}" if run else "a run without a name"
