"""What ``rownorm bars judge`` prints: the cases of a run with their verdicts, then the bars over all runs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ...data.measurements import not_measured
from ...data.records import CEILING, OURS, Record
from ...data.tables import columns, wrapped
from ...data.texts import count, significant
from .figures import PASS_LABELS, FirstCallBar, MeasuredCase, Part
from .judge import (
    Finding,
    Run,
    cases_in,
    figure_of,
    judge_case,
    judge_first_call,
    summarize_bars,
    verdict,
)

NORM_LABELS = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "add_rms_norm": "Add and RMSNorm"}


def run_tables(run: Run, parts: Sequence[Part], first: FirstCallBar) -> Iterator[str]:
    """Everything that a run has measured, case by case."""
    yield from ("", *wrapped(f"{run.name}: {conditions(run)}"))
    for part in parts:
        known = [measured for measured in cases_in(run, part) if measured.rows]
        if not known:
            continue
        yield from ("", f"{part.title} ({part.unit})")
        for title, group in itertools.groupby(known, key=title_of):
            yield from ("", title, *case_table(part, list(group)))
    if run.first_calls:
        yield from ("", "Kernels that the first calls compile", *first_call_table(run, first))
    for remark in remarks(run.records):
        yield from wrapped(remark)


def case_table(part: Part, group: Sequence[MeasuredCase]) -> Iterator[str]:
    """A line for each case: figures and verdict. The bars that do not hold follow on lines of their own."""
    judged = [judge_case(measured) for measured in group]
    header, *lines = columns(
        ["", OURS, "ceiling", "fastest peer", "of peer", "of ceiling", ""],
        [case_cells(part, *case) for case in zip(group, judged, strict=True)],
    )
    yield header
    for line, found in zip(lines, judged, strict=True):
        yield line
        for one in found:
            if not one.holds:
                yield from wrapped(f"      {one.words}", indent=8)


def case_cells(part: Part, measured: MeasuredCase, found: Sequence[Finding]) -> list[str]:
    """The figures and the verdict of a case."""
    ratio, peer = measured.over_peers
    ours = measured.rows.get(OURS)
    mark = " ?" if ours and ours.record.suspect else ""
    return [
        shape_of(measured),
        formatted(part, measured.value(OURS)) + mark,
        formatted(part, measured.value(CEILING)),
        f"{peer} {formatted(part, measured.value(peer))}" if peer else "-",
        "-" if ratio is None else f"{ratio:.3f}",
        "-" if ours is None or ours.of_ceiling is None else f"{ours.of_ceiling:.3f}",
        verdict(found),
    ]


def first_call_table(run: Run, first: FirstCallBar) -> list[str]:
    """The number of kernels that each step compiled."""
    return columns(["columns", *first.most, "bar"], first_call_lines(run, first))


def first_call_lines(run: Run, first: FirstCallBar) -> list[list[str]]:
    """One line for each operation and width."""
    lines = []
    for operation, cols in first.calls:
        call = run.first_calls.get((operation, cols))
        counts = ["-" if call is None else str(len(call.compiled[step])) for step in first.most]
        found = verdict(judge_first_call(run, first, operation, cols))
        lines.append([f"{NORM_LABELS[operation]} {cols}", *counts, found])
    return lines


def summary(found: Sequence[Sequence[Finding]]) -> Iterator[str]:
    """Every bar over all runs, then the cases that fall short, then what is missing."""
    bars = summarize_bars(found)
    yield from ("", f"Bars, over {count(len(found), 'run')}")
    header, *lines = columns(
        ["must be, in every run", "cases", "worst", "verdict"],
        [
            [one.bar, f"{one.n_holding} of {len(one.cases)}", ", ".join(one.worst), one.verdict]
            for one in bars
        ],
    )
    yield header
    part = ""
    for one, line in zip(bars, lines, strict=True):
        if one.part != part:
            part = one.part
            yield part
        yield line
    short = [
        f"  {one.part}: {case}: {', '.join(map(figure_of, of_case))}, must be {one.bar}"
        for one in bars
        for case, of_case in one.cases.items()
        if verdict(of_case) == "SHORT"
    ]
    if short:
        yield from ("", "Falls short, with the figure of each run")
    for text in short:
        yield from wrapped(text, indent=4)
    yield from missing_figures(found)
    n = sum(one.verdict == "holds" for one in bars)
    yield f"\n{n} of {count(len(bars), 'bar')} hold in every run"


def missing_figures(found: Sequence[Sequence[Finding]]) -> Iterator[str]:
    """The figures that are missing, by reason."""
    reasons: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for number, run in enumerate(found, start=1):
        for one in run:
            if one.figure is None:
                reasons[number, one.part, one.words].append(one.what)
    if reasons:
        yield from ("", "Missing")
    for (number, part, why), cases in reasons.items():
        n = len(set(cases))
        where = cases[0] if n == 1 else f"{n} cases, the first is {cases[0]}"
        yield from wrapped(f"  run {number}, {part}: {why}: {where}", indent=4)


def remarks(records: Sequence[Record]) -> Iterator[str]:
    """Which providers were not measured, and which were timed by events."""
    yield from not_measured(records)
    if any(one.suspect for one in records if one.provider == OURS):
        yield "? suspect: the records give the reasons"
    events = [one for one in records if one.method and one.method.timer == "device_events"]
    for name in sorted({one.provider for one in events}):
        n = sum(one.provider == name for one in events)
        yield f"{name} timed by events, not in a CUDA graph: {count(n, 'case')}"


def conditions(run: Run) -> str:
    """Device, driver, versions and date of a run, in one line."""
    if not run.records:
        return "first calls only"
    last = max(run.records, key=lambda record: record.time)
    return f"{last.environment.describe()}, {last.time[:10]}"


def title_of(measured: MeasuredCase) -> str:
    """``RMSNorm (silu) backward``."""
    case = measured.case
    name = NORM_LABELS.get(case.operation, case.operation)
    options = case.variant.removeprefix(case.operation)
    return f"{name}{options} {PASS_LABELS[case.direction]}"


def shape_of(measured: MeasuredCase) -> str:
    """``4096x8192``."""
    return f"{measured.case.rows}x{measured.case.cols}"


def formatted(part: Part, value: float | None) -> str:
    """A value in the unit of the part."""
    if value is None:
        return "-"
    return f"{value:.0f}" if part.unit == "GB/s" else significant(value)
