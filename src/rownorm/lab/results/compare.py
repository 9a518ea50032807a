"""Compare two sets of records: is a provider faster in the new one, the same, slower, or is that unclear?

Two runs share no rounds. If both measured the ceiling, each time is first divided by the ceiling's time of the same
round: whatever slowed down a whole run (clocks, temperature) cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..cases.case import Case
from .records import CEILING, OURS, Environment, Record
from .statistics import MARGIN, Ratio, Verdict, unpaired_ratio, verdict

Key = tuple[str, str]
CONDITIONS = (
    "device",
    "TRITON_INTERPRET",
    "threads",
    "OMP_WAIT_POLICY",
)  # settings that times depend on


class Comparison(NamedTuple):
    """One provider on one case; ``ratio`` is the new time over the base time."""

    case: Case
    provider: str
    ratio: Ratio
    verdict: Verdict
    by_ceiling: bool  # whether the times are relative to the ceiling


class Lost(NamedTuple):
    """A provider and a case that the base measured and the new set could not."""

    case: Case
    provider: str
    why: str


class Outcome(NamedTuple):
    """The result of ``compare``."""

    comparisons: list[Comparison]
    lost: list[Lost]
    only_base: list[Key]  # measured in one set, absent from the other
    only_new: list[Key]


def compare(
    base: Sequence[Record],
    new: Sequence[Record],
    *,
    providers: Sequence[str] = (OURS,),
    margin: float = MARGIN,
    by_ceiling: bool = True,
) -> Outcome:
    """Compare ``new`` with ``base``, case by case. Of several records of one case the last one counts."""
    before, after = _by_key(base), _by_key(new)
    outcome = Outcome([], [], [], [])
    for key, old in before.items():
        if old.provider not in providers or old.status != "ok":
            continue
        now = after.get(key)
        if now is None:
            outcome.only_base.append(key)
        elif now.status != "ok":
            outcome.lost.append(Lost(now.case, now.provider, f"{now.status}: {now.why}"))
        else:
            outcome.comparisons.append(_compared(old, now, before, after, margin, by_ceiling))
    outcome.only_new.extend(
        key
        for key, now in after.items()
        if now.provider in providers and now.status == "ok" and key not in before
    )
    return outcome


def differences(base: Sequence[Record], new: Sequence[Record]) -> list[str]:
    """The reasons not to compare two sets, in words: another device, or another way of measuring."""

    def of(records: Sequence[Record]) -> dict[str, str]:
        measured = [record for record in records if record.status == "ok" and record.method]
        conditions = [_conditions(one.environment) for one in measured]
        return {
            **{what: _listed({one[what] for one in conditions}) for what in CONDITIONS},
            "timer": _listed({one.method.timer for one in measured if one.method}),
            "inputs": _listed(
                {"cold" if one.method.cold else "warm" for one in measured if one.method}
            ),
        }

    before, after = of(base), of(new)
    return [
        f"{what}: {before[what] or 'none'} against {after[what] or 'none'}"
        for what in before
        if before[what] != after[what]
    ]


def changed_conditions(records: Sequence[Record], here: Environment) -> list[str]:
    """The reasons not to add to these records here, in words."""
    now, before = _conditions(here), [_conditions(record.environment) for record in records]
    return [
        f"{what}: {_listed({one[what] for one in before}) or 'none'}, now {now[what] or 'none'}"
        for what in now
        if any(one[what] != now[what] for one in before)
    ]


def _conditions(environment: Environment) -> dict[str, str]:
    """The values of ``CONDITIONS``."""
    device, *settings = CONDITIONS
    return {device: environment.device} | {
        name: environment.settings.get(name, "") for name in settings
    }


def _compared(
    old: Record,
    now: Record,
    before: dict[Key, Record],
    after: dict[Key, Record],
    margin: float,
    by_ceiling: bool,
) -> Comparison:
    old_times = _relative(old, before) if by_ceiling else None
    new_times = _relative(now, after) if by_ceiling else None
    relative = old_times is not None and new_times is not None
    if old_times is None or new_times is None:
        old_times, new_times = old.seconds, now.seconds
    ratio = unpaired_ratio(new_times, old_times)
    return Comparison(now.case, now.provider, ratio, verdict(ratio, margin), relative)


def _relative(record: Record, records: dict[Key, Record]) -> list[float] | None:
    """Each round's time over the ceiling's time of that round; None if the ceiling was not measured with it."""
    ceiling = records.get((record.case.key, CEILING))
    if (
        ceiling is None
        or record.provider == CEILING
        or ceiling.status != "ok"
        or ceiling.run != record.run
        or len(ceiling.seconds) != len(record.seconds)
    ):
        return None
    return [mine / its for mine, its in zip(record.seconds, ceiling.seconds, strict=True)]


def _by_key(records: Sequence[Record]) -> dict[Key, Record]:
    return {record.key: record for record in records}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
