"""The results in one sentence, for the page and ``analysis.md``. The page's figures are made in ``figures.js``."""

from __future__ import annotations

from collections import Counter

from ..data import texts
from ..data.measurements import Measurement, Results, typical
from ..data.records import EAGER, OURS
from .fastest import Standings, over_fastest, standings

MANY_SUSPECT = 0.2  # of the measurements
SINGLE = "Every time is a single one without a spread, so nothing says how certain that is."
OVER_FASTEST = "the fastest other provider"


def sentence(results: Results) -> str:
    """The result in one or two sentences."""
    subject, rows = results.subject, results.of(results.subject)
    if subject is None:
        found = Counter[str](row.record.status for row in results.rows)
        return f"Nothing was measured on {results.device}: {_counts(found)}."
    parts = [_standings_text(subject, standings(rows), len(rows))]
    if rows and all(row.time and row.time.n == 1 for row in rows):
        parts.append(SINGLE)
    if results.kind == "cpu":
        parts[0] = f"On this CPU {parts[0]}"
    if speedups := _speedups_text(rows):
        parts.append(speedups)
    if not results.of(OURS):
        parts.insert(0, f"{OURS} was not measured here.")
    if failures := _failures(results, subject):
        parts.append(failures)
    return " ".join(parts)


def suspect_warning(results: Results) -> str:
    """A warning if many measurements are suspect; else an empty string."""
    measured = results.measured
    suspect = sum(bool(row.record.suspect) for row in measured)
    if suspect <= MANY_SUSPECT * len(measured):
        return ""
    share = f"{suspect} of {texts.count(len(measured), 'measurement')}"
    return (
        f"{share} are marked suspect, so these figures are unreliable. The reasons are listed below the results. "
        "Measure again on an idle machine."
    )


def best_bandwidth(rows: list[Measurement]) -> Measurement | None:
    """The row with the highest bandwidth."""
    return max(rows, key=lambda row: row.bandwidth or 0.0, default=None)


def called(provider: str | None) -> str:
    """The provider's name in a sentence."""
    return "eager PyTorch" if provider == EAGER else str(provider)


def _standings_text(subject: str, found: Standings, measured: int) -> str:
    if not found.cases:
        return (
            f"{subject} was measured in {texts.count(measured, 'case')}, without another provider "
            "to compare it with."
        )
    share = f"{found.fastest_or_level} of {texts.count(found.cases, 'case')}"
    return ", ".join([f"{subject} is fastest or level in {share}", *_other_cases(found)]) + "."


def _speedups_text(rows: list[Measurement]) -> str:
    """The median speed-ups: over the fastest other provider, and over eager PyTorch."""
    fastest = typical(s.ratio for row in rows if (s := over_fastest(row)))
    if fastest is None:
        return ""
    others = {name for row in rows for name in row.speedups}
    if len(others) == 1:
        (only,) = others
        return f"Its median speed-up over {called(only)}, the only other provider, is {texts.times(fastest)}."
    text = f"Its median speed-up is {texts.times(fastest)} over {OVER_FASTEST} of each case"
    eager = typical(row.speedups[EAGER].ratio for row in rows if EAGER in row.speedups)
    return f"{text} and {texts.times(eager)} over {called(EAGER)}." if eager else f"{text}."


def _other_cases(found: Standings) -> list[str]:
    counted = {"slower": found.slower, "too noisy to decide": found.unclear}
    return [f"{words} in {number}" for words, number in counted.items() if number]


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
