"""Judge runs against the bars: one finding for every bar on every case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...data.case import Case
from ...data.files import read_json
from ...data.measurements import Measurement, results_of
from ...data.records import FILE, OURS, Record, read
from . import draw
from .figures import (
    FIGURES,
    OF_LARGE,
    Bar,
    FirstCall,
    FirstCallBar,
    MeasuredCase,
    Missing,
    Part,
    large_of,
    plain_of,
)

FIRST_CALL_FILE = "first_call.json"  # the name in a run folder


class Run(NamedTuple):
    """A run folder that ``rownorm bars measure`` has written."""

    name: str
    records: list[Record]
    damaged: list[tuple[int, str]]
    rows: dict[str, dict[str, Measurement]]  # by the key of the case, then by provider
    first_calls: dict[tuple[str, int], FirstCall]  # by operation and columns
    seed: int | None  # of its draw


class Finding(NamedTuple):
    """One bar on one case of one run."""

    part: str
    bar: str
    what: str  # the case
    sign: str
    figure: float | None  # None: not measured
    holds: bool
    words: str  # the figure with its bar, or the reason why there is no figure


def read_run(folder: Path) -> Run:
    """Read a run folder; ValueError if it holds nothing, damaged counts, or records of several devices."""
    has_records, first = (folder / FILE).exists(), folder / FIRST_CALL_FILE
    if not has_records and not first.exists():
        raise ValueError(f"{folder} holds no measurements; rownorm bars measure --out {folder}")
    records, damaged = read(folder) if has_records else ([], [])
    counted = read_json(first, list[FirstCall], "counts of first calls") if first.exists() else []
    devices = {record.environment.device for record in records}
    if len(devices) > 1:
        raise ValueError(f"{folder} holds records of {' and '.join(sorted(devices))}; judge one")
    by_case: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_case[record.case.key].append(record)
    absent = failed_throughout(records)
    rows = {
        key: {
            row.provider: row for row in results_of(of_case)[0].rows if row.provider not in absent
        }
        for key, of_case in by_case.items()
    }
    calls = {(one.operation, one.cols): one for one in counted}
    return Run(str(folder), records, damaged, rows, calls, draw.read_seed(folder))


def failed_throughout(records: Sequence[Record]) -> set[str]:
    """Peers that failed and were never timed. They do not work on this machine.

    Their records are left out. So they count as not measured, and bars that need them are missing instead of holding.
    """
    failed = {one.provider for one in records if one.status in ("failed", "wrong")}
    return failed - {one.provider for one in records if one.is_timed} - {OURS}


def findings_of(run: Run, parts: Sequence[Part], first: FirstCallBar) -> list[Finding]:
    """Every bar on every case that it applies to, measured or not."""
    of_cases = [one for part in parts if not part.is_trial for one in judge_part(run, part)]
    return of_cases + [one for call in first.calls for one in judge_first_call(run, first, *call)]


def judge_part(run: Run, part: Part) -> list[Finding]:
    """Every bar of a part on every case that it applies to."""
    if part.is_drawn and run.seed is None:
        why = f"nothing was drawn; rownorm bars measure --part {part.name}"
        return [
            Finding(part.name, str(bar), "all cases", bar.sign, None, False, why)
            for bar in part.bars
        ]
    measured = cases_in(run, part)
    return [judge_bar(one, bar) for bar in part.bars for one in measured if bar.applies(one.case)]


def cases_in(run: Run, part: Part) -> list[MeasuredCase]:
    """All cases of a part, as the run measured them."""
    part = part.of_seed(run.seed)

    def ours(case: Case) -> Measurement | None:
        return run.rows.get(case.key, {}).get(OURS)

    def measured(case: Case) -> MeasuredCase:
        large = ours(large_of(case)) if part.judges(OF_LARGE) else None
        return MeasuredCase(case, part, run.rows.get(case.key, {}), ours(plain_of(case)), large)

    return [measured(case) for case in part.cases]


def judge_case(measured: MeasuredCase) -> list[Finding]:
    """Every bar of the part that applies to the case."""
    return [judge_bar(measured, bar) for bar in measured.part.bars if bar.applies(measured.case)]


def judge_bar(measured: MeasuredCase, bar: Bar) -> Finding:
    """One bar on one case."""
    figure, holds = None, False
    try:
        measured.timed(bar.subject)
        figure = FIGURES[bar.figure](measured)
        holds = bar.holds(figure)
        words = (
            f"{bar.limit} {bar.figure}" if holds else f"{figure:.4f} {bar.figure}, not {bar.limit}"
        )
    except Missing as missing:
        words = str(missing)
    return Finding(measured.part.name, str(bar), measured.title, bar.sign, figure, holds, words)


def judge_first_call(run: Run, first: FirstCallBar, operation: str, cols: int) -> Iterator[Finding]:
    """The steps of the first calls of one operation and width."""
    call = run.first_calls.get((operation, cols))
    for step, most in first.most.items():
        names = None if call is None else call.compiled[step]
        n = None if names is None else len(names)
        holds = n is not None and n <= most
        words = f"{step}: " + ("not measured" if names is None else ", ".join(names) or "none")
        what = f"{operation} {cols} columns"
        yield Finding(first.name, f"at most {most} kernels, {step}", what, "<=", n, holds, words)


def verdict(findings: Iterable[Finding]) -> str:
    """The verdict on one case or one bar: holds, SHORT (a figure falls short) or MISSING (a figure is missing)."""
    bad = [one for one in findings if not one.holds]
    if not bad:
        return "holds"
    return "SHORT" if any(one.figure is not None for one in bad) else "MISSING"


class BarSummary(NamedTuple):
    """One bar over all its cases and all runs."""

    part: str
    bar: str
    cases: dict[str, list[Finding]]  # the findings of all runs, by case
    worst: list[str]  # the worst figure of each run

    @property
    def verdict(self) -> str:
        return verdict(one for of_case in self.cases.values() for one in of_case)

    @property
    def n_holding(self) -> int:
        """The number of cases in which the bar holds in every run."""
        return sum(all(one.holds for one in of_case) for of_case in self.cases.values())


def summarize_bars(found: Sequence[Sequence[Finding]]) -> list[BarSummary]:
    """A summary of each bar; found: the findings of each run."""
    by_bar: dict[tuple[str, str], dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for of_run in found:
        for one in of_run:
            by_bar[one.part, one.bar][one.what].append(one)
    return [
        BarSummary(
            part,
            bar,
            dict(cases),
            [worst_of(one for one in run if (one.part, one.bar) == (part, bar)) for run in found],
        )
        for (part, bar), cases in by_bar.items()
    ]


def worst_of(findings: Iterable[Finding]) -> str:
    """The figure closest to falling short, or furthest below the bar."""
    measured = [one for one in findings if one.figure is not None]
    if not measured:
        return "missing"
    choose = min if measured[0].sign in (">", ">=") else max
    return figure_of(choose(measured, key=lambda one: one.figure or 0.0))


def figure_of(finding: Finding) -> str:
    """The figure with four digits, or "missing"."""
    return "missing" if finding.figure is None else f"{finding.figure:.4f}".removesuffix(".0000")
