"""Compare two sets of records: is a provider faster in the new one, the same, slower, or is that unclear?

Two runs share no rounds. If both measured the ceiling, each time is first divided by the ceiling's time of the same
round: whatever slowed down a whole run (clocks, temperature) cancels.

The confidence of 95% is of the whole comparison: if nothing changed, at most one comparison in twenty calls any of its
cases faster or slower. Each case gets its share of the remaining 5%. Times differ for two reasons without a change:

- Rounds of a run differ. The interval covers this.
- Runs differ in ways that their rounds do not show: another process that runs during a whole case, another placement in
  memory, another GPU of the same model. This is the ``noise`` of a case. It is measured with a control, code that is
  the same in both sets: the ceiling, else eager PyTorch. A ratio within the noise is not a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from statistics import NormalDist, median
from typing import NamedTuple

from .case import Case
from .records import CEILING, EAGER, OURS, Environment, Record
from .statistics import (
    CONFIDENCE,
    MARGIN,
    Ratio,
    Verdict,
    enough_rounds,
    quantile,
    unpaired_ratio,
    verdict,
)

Key = tuple[str, str]
Values = dict[str, str]  # of versions or settings, by name
# Settings that times depend on.
CONDITIONS = ("device", "TRITON_INTERPRET", "threads", "OMP_WAIT_POLICY")
VERSIONS = ("rownorm", "torch", "triton", "python", "driver", "host")  # fields of an environment
# A disturbance may affect a provider up to this many times as much as the control. With 2, none of 66 comparisons of
# unchanged code on a CPU with other load called a case faster or slower; with 1.75 two did, with 1.5 three.
SENSITIVITY = 2
# Student's t for 1, 2, 3, 4 and more changes of the control, at 95% for as many cases.
STUDENT = (12.7, 6.2, 4.9, 4.4, 4.0)


class Comparison(NamedTuple):
    """One provider on one case; ``ratio`` is the new time over the base time."""

    case: Case
    provider: str
    ratio: Ratio
    noise: float | None  # a fraction: 0.02 for 2%; None without a control
    verdict: Verdict
    by_ceiling: bool  # whether the times are relative to the ceiling
    enough_rounds: bool = True  # otherwise there is no interval, and the verdict is unclear
    suspect: bool = False  # whether a measurement that was used is suspect


class Lost(NamedTuple):
    """A provider and a case that the base measured and the new set could not."""

    case: Case
    provider: str
    why: str


class Control(NamedTuple):
    """A provider whose code is the same in both sets: its changes are noise."""

    provider: str
    changes: dict[str, float]  # by the key of the case: |log(new / base)|

    @property
    def usual(self) -> float:
        """The largest change to be expected in any case: the scatter of all changes times Student's t."""
        scatter = quantile(sorted(self.changes.values()), 0.9) / NormalDist().inv_cdf(0.95)
        return STUDENT[min(len(self.changes), len(STUDENT)) - 1] * scatter

    def noise(self, case: Case, relative: bool) -> float:
        """How far a time of this case can change without a cause. relative: times over those of the ceiling."""
        # Dividing by the ceiling's time removes a disturbance once.
        sensitivity = SENSITIVITY - relative
        return math.expm1(sensitivity * max(self.usual, self.changes.get(case.key, 0.0)))


class Outcome(NamedTuple):
    """The result of ``compare``."""

    comparisons: list[Comparison]
    lost: list[Lost]
    only_base: list[Key]  # measured in one set, absent from the other
    only_new: list[Key]
    control: Control | None


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
    outcome = Outcome([], [], [], [], _control(base, new, providers))
    pairs = []
    for key, old in before.items():
        if old.provider not in providers or not _timed(old):
            continue
        now = after.get(key)
        if now is None:
            outcome.only_base.append(key)
        elif not _timed(now):
            why = "no valid times" if now.status == "ok" else f"{now.status}: {now.why}"
            outcome.lost.append(Lost(now.case, now.provider, why))
        else:
            pairs.append((old, now))
    confidence = confidence_of_each(len(pairs))
    for old, now in pairs:
        ceilings = _ceiling_of(old, before), _ceiling_of(now, after)
        chosen = ceilings if by_ceiling else (None, None)
        outcome.comparisons.append(_compared(old, now, chosen, outcome.control, margin, confidence))
    outcome.only_new.extend(
        key
        for key, now in after.items()
        if now.provider in providers and _timed(now) and key not in before
    )
    return outcome


def confidence_of_each(cases: int) -> float:
    """The confidence of each interval, so that all of them together have ``CONFIDENCE``."""
    return 1 - (1 - CONFIDENCE) / max(1, cases)


def rounds_needed(cases: int) -> int:
    """The fewest rounds in both sets with which that many cases have intervals."""
    confidence = confidence_of_each(cases)
    return next(n for n in range(1, 1000) if enough_rounds(n, n, confidence))


def differences(base: Sequence[Record], new: Sequence[Record]) -> list[str]:
    """The reasons not to compare two sets, in words: another device, or another way of measuring."""

    def of(records: Sequence[Record]) -> Values:
        measured = [record for record in records if record.status == "ok" and record.method]
        conditions = [_conditions(one.environment) for one in measured]
        return {
            **{what: _listed({one[what] for one in conditions}) for what in CONDITIONS},
            "timer": _listed({one.method.timer for one in measured if one.method}),
            "inputs": _listed(
                {"cold" if one.method.cold else "warm" for one in measured if one.method}
            ),
        }

    return _unequal(of(base), of(new))


def changes(base: Sequence[Record], new: Sequence[Record]) -> list[str]:
    """What else differs between two sets, in words: versions, users' files, and settings that affect times."""

    def of(records: Sequence[Record], values: Callable[[Environment], dict[str, str]]) -> Values:
        found: dict[str, set[str]] = {}
        for record in records:
            for name, value in values(record.environment).items():
                if value and name not in CONDITIONS:
                    found.setdefault(name, set()).add(value)
        return {name: _listed(each) for name, each in found.items()}

    def software(here: Environment) -> dict[str, str]:
        return here.versions | {name: getattr(here, name) for name in VERSIONS}

    def sources(records: Sequence[Record]) -> Values:
        return {one.provider: str(one.source) for one in records if one.source is not None}

    before, after = of(base, software) | sources(base), of(new, software) | sources(new)
    both = before.keys() & after  # a package is recorded only if its provider was measured
    return [
        *_unequal(
            *({name: each[name] for name in each if name in both} for each in (before, after))
        ),
        *_unequal(of(base, lambda here: here.settings), of(new, lambda here: here.settings)),
    ]


def changed_conditions(records: Sequence[Record], here: Environment) -> list[str]:
    """The reasons not to add to these records here, in words."""
    now, before = _conditions(here), [_conditions(record.environment) for record in records]
    return [
        f"{what}: {_listed({one[what] for one in before}) or 'none'}, now {now[what] or 'none'}"
        for what in now
        if any(one[what] != now[what] for one in before)
    ]


def _unequal(before: Values, after: Values) -> list[str]:
    return [
        f"{what}: {before.get(what) or 'none'} against {after.get(what) or 'none'}"
        for what in {**before, **after}
        if before.get(what) != after.get(what)
    ]


def _conditions(environment: Environment) -> dict[str, str]:
    """The values of ``CONDITIONS``."""
    device, *settings = CONDITIONS
    return {device: environment.device} | {
        name: environment.settings.get(name, "") for name in settings
    }


def _control(
    base: Sequence[Record], new: Sequence[Record], providers: Collection[str]
) -> Control | None:
    """The control, if the sets have one: a provider that is not compared, under the same conditions."""
    torch = {one.environment.torch for one in [*base, *new]}
    if len(torch) > 1 or differences(base, new):
        return None
    for provider in (CEILING, EAGER):
        if provider in providers:
            continue
        before, after = (
            {
                one.case.key: median(one.seconds)
                for one in records
                if one.provider == provider and _timed(one)
            }
            for records in (base, new)
        )
        found = {key: abs(math.log(after[key] / before[key])) for key in before.keys() & after}
        if found:
            return Control(provider, found)
    return None


def _timed(record: Record) -> bool:
    """Whether a record has times, and each of them can be one."""
    valid = all(0 < seconds < math.inf for seconds in record.seconds)
    return record.status == "ok" and bool(record.seconds) and valid


def _compared(
    old: Record,
    now: Record,
    ceilings: tuple[Record | None, Record | None],
    control: Control | None,
    margin: float,
    confidence: float,
) -> Comparison:
    old_times, new_times, used, relative = old.seconds, now.seconds, [old, now], False
    old_ceiling, new_ceiling = ceilings
    if old_ceiling and new_ceiling:
        old_times, new_times = _relative(old, old_ceiling), _relative(now, new_ceiling)
        used, relative = [*used, old_ceiling, new_ceiling], True
    ratio = unpaired_ratio(new_times, old_times, confidence)
    noise = control.noise(now.case, relative) if control else None
    enough = enough_rounds(len(new_times), len(old_times), confidence)
    return Comparison(
        now.case,
        now.provider,
        ratio,
        noise,
        verdict(ratio, margin, noise or 0.0) if enough else "unclear",
        relative,
        enough,
        any(one.suspect for one in used),
    )


def _relative(record: Record, ceiling: Record) -> list[float]:
    """Each round's time over the ceiling's time of that round."""
    return [mine / its for mine, its in zip(record.seconds, ceiling.seconds, strict=True)]


def _ceiling_of(record: Record, records: dict[Key, Record]) -> Record | None:
    """The ceiling that was measured in the same rounds."""
    ceiling = records.get((record.case.key, CEILING))
    if (
        ceiling is None
        or record.provider == CEILING
        or not _timed(ceiling)
        or ceiling.run != record.run
        or len(ceiling.seconds) != len(record.seconds)
    ):
        return None
    return ceiling


def _by_key(records: Sequence[Record]) -> dict[Key, Record]:
    return {record.key: record for record in records}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
