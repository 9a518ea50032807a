"""Runs held against bars: verdicts, tables for the terminal or for a page, and a summary of all runs."""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from figures import FIGURES, Missing, Must, Part, Seen
from first_call import FirstCall
from measure import FIRST_CALL_FILE

from rownorm.lab.cases import Case
from rownorm.lab.records import CEILING, FILE, OURS, Record, read
from rownorm.lab.results import Row, results_of
from rownorm.lab.summary import not_measured
from rownorm.lab.texts import count, significant

SIGNS: dict[str, Callable[[float, float], bool]] = {
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
}
PROVIDER_LABELS = {"liger": "Liger", "quack": "QuACK", "fla": "flash-linear-attention"}
NORM_LABELS = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "add_rms_norm": "Add and RMSNorm"}


class FirstCallBar(NamedTuple):
    """How many kernels each step of ``first_call`` may compile."""

    name: str
    operations: tuple[str, ...]
    cols: tuple[int, ...]
    most: dict[str, int]

    @property
    def calls(self) -> list[tuple[str, int]]:
        return list(itertools.product(self.operations, self.cols))


class Run(NamedTuple):
    """A folder that ``measure`` has written."""

    name: str
    records: list[Record]
    damaged: list[tuple[int, str]]
    rows: dict[str, dict[str, Row]]  # by the key of the case, then by provider
    first_calls: dict[tuple[str, int], FirstCall]


class Finding(NamedTuple):
    """One bar on one case of one run."""

    part: str
    bar: str
    what: str
    sign: str
    figure: float | None
    holds: bool
    words: str  # the figure with its bar, or why there is none


def read_run(folder: Path) -> Run:
    """ValueError where nothing was measured, or on several devices."""
    if not (folder / FILE).exists() and not (folder / FIRST_CALL_FILE).exists():
        raise ValueError(f"{folder} holds no measurements; bars.py measure --out {folder}")
    records, damaged = read(folder) if (folder / FILE).exists() else ([], [])
    devices = {record.environment.device for record in records}
    if len(devices) > 1:
        raise ValueError(f"{folder} holds records of {' and '.join(sorted(devices))}; judge one")
    by_case: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_case[record.case.key].append(record)
    absent = failed_throughout(records)
    rows = {
        key: {row.provider: row for row in results_of(given)[0].rows if row.provider not in absent}
        for key, given in by_case.items()
    }
    calls: list[FirstCall] = []
    if (folder / FIRST_CALL_FILE).exists():
        try:
            calls = msgspec.json.decode(
                (folder / FIRST_CALL_FILE).read_bytes(), type=list[FirstCall]
            )
        except msgspec.DecodeError as error:
            raise ValueError(f"{folder / FIRST_CALL_FILE} is damaged: {error}") from None
    return Run(
        str(folder), records, damaged, rows, {(one.operation, one.cols): one for one in calls}
    )


def failed_throughout(records: Sequence[Record]) -> set[str]:
    """Peers that failed and were never timed: something is wrong with them here, and nobody was compared with them."""
    failed = {one.provider for one in records if one.status in ("failed", "wrong")}
    return failed - {one.provider for one in records if one.seconds} - {OURS}


def plain_of(case: Case) -> Case:
    """The same shape and pass without options."""
    return msgspec.structs.replace(case, pre_bias=False, activation=None)


# ---- verdicts ----


def findings_of(run: Run, parts: Sequence[Part], first: FirstCallBar) -> list[Finding]:
    """Every bar on every case that it is for, measured or not."""
    of_cases = [
        judge_must(seen, must)
        for part in parts
        for must in part.musts
        for seen in seen_in(run, part)
        if must.applies(seen.case)
    ]
    return of_cases + [one for call in first.calls for one in judge_first_call(run, first, *call)]


def seen_in(run: Run, part: Part) -> list[Seen]:
    def seen(case: Case) -> Seen:
        plain = run.rows.get(plain_of(case).key, {}).get(OURS)
        return Seen(case, part, run.rows.get(case.key, {}), plain)

    return [seen(case) for case in part.cases]


def judge_case(seen: Seen) -> list[Finding]:
    return [judge_must(seen, must) for must in seen.part.musts if must.applies(seen.case)]


def judge_must(seen: Seen, must: Must) -> Finding:
    figure, holds = None, False
    try:
        seen.timed(OURS)
        figure = FIGURES[must.figure](seen)
        holds = SIGNS[must.sign](figure, must.bound)
        words = (
            must.words if holds else f"{figure:.4f} {must.figure}, not {must.sign} {must.bound:g}"
        )
    except Missing as missing:
        words = str(missing)
    return Finding(seen.part.name, str(must), seen.case.title, must.sign, figure, holds, words)


def judge_first_call(run: Run, first: FirstCallBar, operation: str, cols: int) -> Iterator[Finding]:
    call = run.first_calls.get((operation, cols))
    for step, most in first.most.items():
        names = None if call is None else call.compiled[step]
        n = None if names is None else len(names)
        holds = n is not None and n <= most
        words = f"{step}: " + ("not measured" if names is None else ", ".join(names) or "none")
        what = f"{operation} {cols} columns"
        yield Finding(first.name, f"<= {most} kernels, {step}", what, "<=", n, holds, words)


def verdict(findings: Iterable[Finding]) -> str:
    """Of one case, or of one bar."""
    bad = [one for one in findings if not one.holds]
    return (
        "holds" if not bad else "SHORT" if any(one.figure is not None for one in bad) else "MISSING"
    )


# ---- tables ----


def tables(run: Run, parts: Sequence[Part], first: FirstCallBar, markdown: bool) -> Iterator[str]:
    """Everything that the run has measured, case by case."""
    yield from heading(f"{run.name}: {conditions(run)}", 1, markdown)
    for part in parts:
        known = [seen for seen in seen_in(run, part) if seen.rows]
        if not known:
            continue
        yield from heading(f"{part.title} ({part.unit})", 2, markdown)
        for title, group in itertools.groupby(known, key=title_of):
            yield from heading(title, 3, markdown)
            yield from (figures_table if markdown else verdict_table)(part, list(group))
    if run.first_calls:
        yield from heading("Kernels that the first calls compile", 2, markdown)
        yield from first_call_table(run, first, markdown)
    if markdown:
        yield ""
    for line in remarks(run.records):
        yield f"- {line}" if markdown else line


def verdict_table(part: Part, group: Sequence[Seen]) -> Iterator[str]:
    header = ["", OURS, "ceiling", "fastest peer", "of peer", "of ceiling", "", "bar"]
    lines = []
    for seen in group:
        ratio, peer = seen.over_peers
        ours = seen.rows.get(OURS)
        found = judge_case(seen)
        shown = [one for one in found if not one.holds] or found
        doubt = " ?" if ours and ours.record.suspicions else ""
        lines.append(
            [
                shape_of(seen),
                written(part, seen.value(OURS)) + doubt,
                written(part, seen.value(CEILING)),
                f"{peer} {written(part, seen.value(peer))}" if peer else "-",
                "-" if ratio is None else f"{ratio:.3f}",
                "-" if ours is None or ours.of_ceiling is None else f"{ours.of_ceiling:.3f}",
                verdict(found),
                "; ".join(one.words for one in shown),
            ]
        )
    return rendered(header, lines, markdown=False)


def figures_table(part: Part, group: Sequence[Seen]) -> Iterator[str]:
    """As docs/performance.md has them."""
    to_ceiling, to_plain = (
        CEILING in part.providers,
        any(must.figure == "of the plain norm" for must in part.musts),
    )
    header = ["rows x columns", *(["ceiling", OURS, "of ceiling"] if to_ceiling else [OURS])]
    header += [PROVIDER_LABELS.get(name, name) for name in part.peers]
    header += ["over the fastest of them", *(["of the plain norm"] if to_plain else [])]
    lines = []
    for seen in group:
        ours = seen.rows.get(OURS)
        cells = [shape_of(seen)]
        cells += [written(part, seen.value(CEILING))] if to_ceiling else []
        cells += [written(part, seen.value(OURS))]
        cells += [ratio_of(ours.of_ceiling if ours else None)] if to_ceiling else []
        cells += [written(part, seen.value(name)) for name in part.peers]
        cells += [ratio_of(seen.over_peers[0])]
        if to_plain:
            try:
                cells.append(ratio_of(FIGURES["of the plain norm"](seen)))
            except Missing:
                cells.append("-")
        lines.append(cells)
    return rendered(header, lines, markdown=True)


def first_call_table(run: Run, first: FirstCallBar, markdown: bool) -> Iterator[str]:
    lines = []
    for operation, cols in first.calls:
        call = run.first_calls.get((operation, cols))
        counts = ["-" if call is None else str(len(call.compiled[step])) for step in first.most]
        found = list(judge_first_call(run, first, operation, cols))
        what = f"{NORM_LABELS[operation]} {cols}"
        lines.append([what, *counts, verdict(found)])
    return rendered(["columns", *first.most, "bar"], lines, markdown)


def summary(found: Sequence[Sequence[Finding]], markdown: bool) -> Iterator[str]:
    """Every bar over all runs, then what falls short, with its figure in each run, then what is missing."""
    by_bar: dict[tuple[str, str], dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for one in itertools.chain.from_iterable(found):
        by_bar[one.part, one.bar][one.what].append(one)
    yield from heading(f"Bars, over {count(len(found), 'run')}", 1, markdown)
    bars = []
    for (part, bar), cases in by_bar.items():
        all_runs = [one for of_case in cases.values() for one in of_case]
        good = sum(all(one.holds for one in of_case) for of_case in cases.values())
        worst = [
            worst_of(one for one in run if (one.part, one.bar) == (part, bar)) for run in found
        ]
        bars.append([part, bar, f"{good} of {len(cases)}", ", ".join(worst), verdict(all_runs)])
    yield from rendered(["part", "must be", "cases", "worst", "in every run"], bars, markdown)
    short = [
        [part, what, bar, ", ".join(map(figure_of, of_case))]
        for (part, bar), cases in by_bar.items()
        for what, of_case in cases.items()
        if verdict(of_case) == "SHORT"
    ]
    if short:
        yield from heading("Falls short", 2, markdown)
        yield from rendered(["part", "case", "must be", "in each run"], short, markdown)
    yield from missing_table(found, markdown)
    n = sum(verdict(itertools.chain(*cases.values())) == "holds" for cases in by_bar.values())
    yield f"\n{n} of {count(len(by_bar), 'bar')} hold in every run"


def missing_table(found: Sequence[Sequence[Finding]], markdown: bool) -> Iterator[str]:
    """What has no figure, each reason once."""
    reasons: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for number, run in enumerate(found, start=1):
        for one in run:
            if one.figure is None:
                reasons[f"{number}", one.part, one.words].append(one.what)
    if reasons:
        lines = [
            [run, part, why, str(len(set(cases))), cases[0]]
            for (run, part, why), cases in reasons.items()
        ]
        yield from heading("Missing", 2, markdown)
        yield from rendered(["run", "part", "why", "cases", "first"], lines, markdown)


def remarks(records: Sequence[Record]) -> Iterator[str]:
    """Who was not measured, and whose times have another origin than the others'."""
    yield from not_measured(records)
    if any(one.suspicions for one in records if one.provider == OURS):
        yield "? doubtful: the records say why"
    events = [one for one in records if one.method and one.method.timer == "device_events"]
    for name in sorted({one.provider for one in events}):
        n = sum(one.provider == name for one in events)
        yield f"{name} timed by events, not in a CUDA graph: {count(n, 'case')}"


# ---- cells ----


def conditions(run: Run) -> str:
    if not run.records:
        return "first calls only"
    last = max(run.records, key=lambda record: record.time)
    here = last.environment
    packages = [f"{name} {version}" for name, version in here.versions.items() if name != "torch"]
    driver = [f"driver {here.driver}"] if here.driver else []
    versions = [f"torch {here.torch}", f"triton {here.triton}", *packages]
    return ", ".join([here.device, *driver, *versions, last.time[:10]])


def title_of(seen: Seen) -> str:
    """``RMSNorm (silu) backward``."""
    case = seen.case
    name = NORM_LABELS.get(case.operation, case.operation)
    return f"{name}{case.variant.removeprefix(case.operation)} {case.direction}"


def shape_of(seen: Seen) -> str:
    return f"{seen.case.rows}x{seen.case.cols}"


def written(part: Part, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if part.unit == "GB/s" else significant(value)


def ratio_of(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def figure_of(finding: Finding) -> str:
    return "missing" if finding.figure is None else f"{finding.figure:.4f}".removesuffix(".0000")


def worst_of(findings: Iterable[Finding]) -> str:
    """The figure that is closest to falling short, or furthest beyond."""
    measured = [one for one in findings if one.figure is not None]
    if not measured:
        return "missing"
    choose = min if measured[0].sign in (">", ">=") else max
    return figure_of(choose(measured, key=lambda one: one.figure or 0.0))


def heading(text: str, level: int, markdown: bool) -> list[str]:
    return ["", f"{'#' * level} {text}" if markdown else text]


def rendered(
    header: Sequence[str], lines: Sequence[Sequence[str]], markdown: bool
) -> Iterator[str]:
    """A table of a page, or columns for a terminal."""
    if markdown:
        yield ""
        for cells in (header, ["---"] * len(header), *lines):
            yield f"| {' | '.join(cells)} |"
        return
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for cells in (header, *lines):
        padded = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        yield f"  {'  '.join(padded)}".rstrip()
