"""The results in one sentence and a few figures."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .. import texts
from ..results.records import CEILING, EAGER, OURS
from ..results.rows import Results, Row, cases_of, typical
from ..results.statistics import verdict
from .points import shape

MANY_SUSPECT = 0.2  # of the measurements


class Figure(NamedTuple):
    """One headline number, with a label and a note."""

    value: str
    label: str
    note: str = ""


class Standing(NamedTuple):
    """In how many cases a provider is faster than, equal to, or slower than the fastest other provider."""

    faster: int = 0
    level: int = 0
    slower: int = 0
    unclear: int = 0  # the interval is too wide to decide

    @property
    def cases(self) -> int:
        return sum(self)


def sentence(results: Results) -> str:
    """The result in one or two sentences."""
    subject, rows = results.subject, results.of(results.subject)
    if subject is None:
        found = Counter[str](row.record.status for row in results.rows)
        return f"Nothing was measured on {results.device}: {_counts(found)}."
    where = "On this CPU " if results.kind == "cpu" else ""
    parts = [where + _standing_text(subject, standing(results), len(rows))]
    if speedup := median_speedup(results):
        parts.append(
            f"its median speed-up over {called(results.baseline)} is {texts.times(speedup)}"
        )
    if share := typical(row.of_ceiling for row in rows):
        parts.append(f"its median bandwidth is {texts.percent(share)} of the measured ceiling")
    text = "; ".join(parts) + "."
    if subject != OURS:
        text = f"{OURS} was not measured here. {text}"
    return f"{text} {_failures(results, subject)}".strip()


def figures(results: Results) -> list[Figure]:
    """The headline numbers that were measured."""
    subject, rows = results.subject, results.of(results.subject)
    found = []
    place = standing(results)
    if place.cases:
        note = ", ".join(_other_cases(place))
        found.append(Figure(f"{place.faster} of {place.cases}", f"cases: {subject} fastest", note))
    speedups = [row.speedups[b].ratio for row in rows if (b := results.baseline) in row.speedups]
    if speedup := median_speedup(results):
        note = f"{texts.times(min(speedups))} to {texts.times(max(speedups))}"
        found.append(Figure(texts.times(speedup), f"over {called(results.baseline)}, median", note))
    if share := typical(row.of_ceiling for row in rows):
        best = max(row.of_ceiling for row in rows if row.of_ceiling)
        found.append(
            Figure(
                texts.percent(share),
                "of the measured ceiling, median",
                f"best {texts.percent(best)}",
            )
        )
    if top := best_bandwidth(rows):
        share_of_peak = f"{texts.percent(top.of_peak)} of peak, " if top.of_peak else ""
        value = texts.gigabytes_per_second(top.bandwidth or 0)
        found.append(
            Figure(value, "highest bandwidth", f"{share_of_peak}{top.group}, {shape(top)}")
        )
    if host := _host_figure(results):
        found.append(host)
    if errors := [row.record.accuracy.max_ulp for row in rows if row.record.accuracy]:
        value = f"{texts.significant(max(errors), 2)} ulp"
        found.append(Figure(value, "largest error against fp64", _torch_error(results)))
    return found


def suspect_warning(results: Results) -> str:
    """A warning if many measurements are suspect; else an empty string."""
    suspect = sum(bool(row.record.suspect) for row in results.measured)
    if suspect <= MANY_SUSPECT * len(results.measured):
        return ""
    share = f"{suspect} of {texts.count(len(results.measured), 'measurement')}"
    return (
        f"{share} are marked suspect, so these figures are unreliable. The reasons are listed below the results. "
        "Measure again on an idle machine."
    )


def standing(results: Results) -> Standing:
    """The subject against the fastest other provider, case by case. Cases without another provider do not count."""
    found: Counter[str] = Counter()
    for providers in cases_of(results.measured):
        subject = providers.get(results.subject or "")
        others = [row for name, row in providers.items() if name not in (CEILING, results.subject)]
        if subject and others:
            best = min(others, key=lambda row: row.time.median if row.time else 0.0)
            # The speed-up of the other provider over the subject is the subject's time over the other's.
            found[verdict(best.speedups[subject.provider])] += 1
    return Standing(found["faster"], found["same"], found["slower"], found["unclear"])


def median_speedup(results: Results) -> float | None:
    """The median speed-up of the subject over the baseline."""
    baseline = results.baseline
    rows = [row for row in results.of(results.subject) if baseline in row.speedups]
    return typical(row.speedups[str(baseline)].ratio for row in rows)


def best_bandwidth(rows: list[Row]) -> Row | None:
    """The row with the highest bandwidth."""
    return max(rows, key=lambda row: row.bandwidth or 0.0, default=None)


def called(provider: str | None) -> str:
    """The provider's name in a sentence."""
    return "eager PyTorch" if provider == EAGER else str(provider)


def _standing_text(subject: str, place: Standing, measured: int) -> str:
    if not place.cases:
        return (
            f"{subject} was measured in {texts.count(measured, 'case')}, without another provider "
            "to compare it with"
        )
    first = f"is the fastest in {place.faster} of {texts.count(place.cases, 'case')}"
    return f"{subject} {', '.join([first, *_other_cases(place)])}"


def _other_cases(place: Standing) -> list[str]:
    found = {
        "as fast as the fastest": place.level,
        "slower": place.slower,
        "too noisy to decide": place.unclear,
    }
    return [f"{words} in {number}" for words, number in found.items() if number]


def _failures(results: Results, subject: str) -> str:
    """The cases of the subject that have no time, counted by status."""
    found = Counter[str](
        row.record.status
        for row in results.rows
        if row.provider == subject and row.record.status != "ok"
    )
    return f"In addition it has {_counts(found)}." if found else ""


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
