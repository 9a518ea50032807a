"""What ``rownorm bars judge`` prints: the cases of a run with their verdicts, then the bars over all runs."""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from ...data.measurements import not_measured
from ...data.records import CEILING, EAGER, OURS, Record
from ...data.tables import columns, fitted, narrowed, wrapped
from ...data.texts import count, significant
from .figures import PASS_LABELS, Bar, FirstCallBar, MeasuredCase, Part
from .judge import (
    Finding,
    Run,
    cases_in,
    figure_of,
    judge_bar,
    judge_case,
    judge_first_call,
    summarize_bars,
    verdict,
)

NORM_LABELS = {
    "rms_norm": "RMSNorm",
    "layer_norm": "LayerNorm",
    "add_rms_norm": "Add and RMSNorm",
    "add_layer_norm": "Add and LayerNorm",
}


def run_tables(run: Run, parts: Sequence[Part], first: FirstCallBar) -> Iterator[str]:
    """Everything that a run has measured, case by case."""
    yield from ("", *wrapped(f"{run.name}: {conditions(run)}"))
    for part in parts:
        known = [measured for measured in cases_in(run, part) if measured.rows]
        if not known:
            continue
        seed = f", seed {run.seed}" if part.is_drawn else ""
        yield from ("", f"{part.title} ({part.unit}){seed}")
        if part.has_settings:
            yield from settings_tables(run, part)
            continue
        for title, group in itertools.groupby(known, key=title_of):
            yield from ("", title, *case_table(part, list(group)))
    if run.first_calls:
        header = ["columns", *first.most, "bar"]
        yield from ("", "Kernels that the first calls compile")
        yield from columns(header, first_call_lines(run, first))
    for remark in remarks(run.records):
        yield from wrapped(remark)


def settings_table(runs: Sequence[Run], part: Part) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a part with settings: a line for each bar of each case, with the figures of every run."""
    endings = [""] if len(runs) == 1 else [f", run {n}" for n in range(1, len(runs) + 1)]
    names = (EAGER, OURS, part.bars[0].figure)
    header = ["norm", "pass", "setting", *(f"{name}{end}" for end in endings for name in names)]
    lines = [
        settings_line(part, bar, of_runs)
        for of_runs in zip(*(cases_in(run, part) for run in runs), strict=True)
        if any(measured.rows for measured in of_runs)
        for bar in part.bars
        if bar.applies(of_runs[0].case)
    ]
    return [*header, "must be", "verdict"], lines


def settings_tables(run: Run, part: Part) -> Iterator[str]:
    """The same of one run, for a terminal: a table for each norm and pass, without the bars, which the summary has."""
    header, lines = settings_table([run], part)
    kind = operator.itemgetter(0, 1)
    for (norm, way), group in itertools.groupby(sorted(lines, key=kind), key=kind):
        shown = [[*line[2:-2], line[-1]] for line in group]
        yield from ("", *wrapped(f"{norm} {way}"), *fitted([*header[2:-2], header[-1]], shown))


def settings_line(part: Part, bar: Bar, of_runs: Sequence[MeasuredCase]) -> list[str]:
    """One bar on one case, over all runs."""
    case, found = of_runs[0].case, [judge_bar(measured, bar) for measured in of_runs]
    norm = msgspec.structs.replace(case, setting="").variant  # the setting has a column of its own
    norm += " with add" if bar.subject != OURS else ""
    figures = [
        cell
        for measured, one in zip(of_runs, found, strict=True)
        for cell in (
            formatted(part, measured.value(EAGER)),
            formatted(part, measured.value(bar.subject)),
            "-" if one.figure is None else f"{one.figure:.3f}",
        )
    ]
    judged = "not judged" if part.is_trial else verdict(found)
    setting = f"{case.name or f'{case.rows} x {case.cols} {case.dtype}'}, {case.setting}"
    return [norm, PASS_LABELS[case.direction], setting, *figures, bar.limit, judged]


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
    header, *lines = narrowed(
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
