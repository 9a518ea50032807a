"""What the records say, in one sentence and a few figures."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .. import texts
from ..records import CEILING, EAGER, OURS
from ..results import Results, Row, cases_of, typical
from ..statistics import verdict
from .points import shape

MANY_DOUBTS = 0.2  # of the measurements


class Figure(NamedTuple):
    """A figure that stands alone."""

    value: str
    label: str
    note: str = ""


class Standing(NamedTuple):
    """In how many cases a provider is faster than, level with, or slower than the best of the others."""

    faster: int = 0
    level: int = 0
    slower: int = 0
    unclear: int = 0  # the interval is too wide to tell

    @property
    def cases(self) -> int:
        return sum(self)


def sentence(results: Results) -> str:
    """The verdict."""
    subject, rows = results.subject, results.of(results.subject)
    if subject is None:
        found = Counter[str](row.record.status for row in results.rows)
        return f"Nothing was measured on {results.device}: {_counts(found)}."
    where = "On this CPU " if results.kind == "cpu" else ""
    parts = [where + _standing_words(subject, standing(results), len(rows))]
    if speedup := median_speedup(results):
        parts.append(
            f"its median speed-up over {called(results.baseline)} is {texts.times(speedup)}"
        )
    if share := typical(row.of_ceiling for row in rows):
        parts.append(f"its median bandwidth is {texts.percent(share)} of the measured ceiling")
    said = "; ".join(parts) + "."
    if subject != OURS:
        said = f"{OURS} was not measured here. {said}"
    return f"{said} {_troubles(results, subject)}".strip()


def figures(results: Results) -> list[Figure]:
    """The few numbers a reader takes away; none that was not measured."""
    subject, rows = results.subject, results.of(results.subject)
    made = []
    place = standing(results)
    if place.cases:
        note = ", ".join(_other_cases(place))
        made.append(Figure(f"{place.faster} of {place.cases}", f"cases: {subject} fastest", note))
    speedups = [row.speedups[b].ratio for row in rows if (b := results.baseline) in row.speedups]
    if speedup := median_speedup(results):
        note = f"{texts.times(min(speedups))} to {texts.times(max(speedups))}"
        made.append(Figure(texts.times(speedup), f"over {called(results.baseline)}, median", note))
    if share := typical(row.of_ceiling for row in rows):
        best = max(row.of_ceiling for row in rows if row.of_ceiling)
        made.append(
            Figure(
                texts.percent(share),
                "of the measured ceiling, median",
                f"best {texts.percent(best)}",
            )
        )
    if top := best_bandwidth(rows):
        share_of_peak = f"{texts.percent(top.of_peak)} of peak, " if top.of_peak else ""
        value = texts.gigabytes_per_second(top.bandwidth or 0)
        made.append(Figure(value, "highest bandwidth", f"{share_of_peak}{top.group}, {shape(top)}"))
    if host := _host_figure(results):
        made.append(host)
    if errors := [row.record.accuracy.max_ulp for row in rows if row.record.accuracy]:
        value = f"{texts.significant(max(errors), 2)} ulp"
        made.append(Figure(value, "largest error against fp64", _torch_error(results)))
    return made


def doubts(results: Results) -> str:
    """A warning where many of the measurements are suspect; else nothing."""
    suspect = sum(bool(row.record.suspicions) for row in results.measured)
    if suspect <= MANY_DOUBTS * len(results.measured):
        return ""
    share = f"{suspect} of {texts.count(len(results.measured), 'measurement')}"
    return (
        f"{share} are marked suspect, so take the figures with care. The reasons stand below the results. A machine "
        "that does nothing else gives better ones."
    )


def standing(results: Results) -> Standing:
    """Where the subject stands among the providers, case by case; cases that it ran alone do not count."""
    found: Counter[str] = Counter()
    for providers in cases_of(results.measured):
        subject = providers.get(results.subject or "")
        others = [row for name, row in providers.items() if name not in (CEILING, results.subject)]
        if subject and others:
            best = min(others, key=lambda row: row.time.median if row.time else 0.0)
            # The speed-up of the other over the subject is the subject's time over the other's.
            found[verdict(best.speedups[subject.provider])] += 1
    return Standing(found["faster"], found["same"], found["slower"], found["unclear"])


def median_speedup(results: Results) -> float | None:
    baseline = results.baseline
    rows = [row for row in results.of(results.subject) if baseline in row.speedups]
    return typical(row.speedups[str(baseline)].ratio for row in rows)


def best_bandwidth(rows: list[Row]) -> Row | None:
    return max(rows, key=lambda row: row.bandwidth or 0.0, default=None)


def called(provider: str | None) -> str:
    return "eager PyTorch" if provider == EAGER else str(provider)


def _standing_words(subject: str, place: Standing, measured: int) -> str:
    if not place.cases:
        alone = "nothing else was measured to compare it with"
        return f"{subject} was measured in {texts.count(measured, 'case')}; {alone}"
    first = f"is the fastest in {place.faster} of {texts.count(place.cases, 'case')}"
    return f"{subject} {', '.join([first, *_other_cases(place)])}"


def _other_cases(place: Standing) -> list[str]:
    found = {
        "level with the fastest": place.level,
        "slower": place.slower,
        "too noisy to tell": place.unclear,
    }
    return [f"{words} in {number}" for words, number in found.items() if number]


def _troubles(results: Results, subject: str) -> str:
    """Cases in which the subject did not give a result to be timed."""
    found = Counter[str](
        row.record.status
        for row in results.rows
        if row.provider == subject and row.record.status != "ok"
    )
    return f"It has {_counts(found)} besides." if found else ""


def _counts(found: Counter[str]) -> str:
    return texts.listed([f"{number} {status}" for status, number in found.most_common()])


def _host_figure(results: Results) -> Figure | None:
    def host(provider: str | None) -> float | None:
        return typical(
            row.host.median
            for row in results.of(provider)
            if row.host and row.group.direction == "forward"
        )

    ours, theirs = host(results.subject), host(results.baseline)
    if ours is None:
        return None
    note = f"{called(results.baseline)} {texts.duration(theirs)}" if theirs else ""
    return Figure(texts.duration(ours), "host time of a forward call, median", note)


def _torch_error(results: Results) -> str:
    errors = [r.record.accuracy.max_ulp for r in results.of(results.baseline) if r.record.accuracy]
    if not errors:
        return ""
    return f"{called(results.baseline)} {texts.significant(max(errors), 2)} ulp"
