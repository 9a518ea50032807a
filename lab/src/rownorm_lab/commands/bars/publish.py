"""``rownorm bars publish``: runs to Markdown pages, one per part, an index page, and a small data file."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...data.files import write_whole
from ...data.published import Published, PublishedBar, PublishedCase, PublishedPart
from ...data.records import CEILING, OURS
from ...data.tables import markdown, markdown_page
from ...data.texts import count, slug
from . import bars
from .figures import FIGURES, OF_LARGE, OF_PLAIN, MeasuredCase, Missing, Part
from .judge import BarSummary, Finding, Run, cases_in, findings_of, judge_part, summarize_bars
from .tables import (
    conditions,
    first_call_lines,
    formatted,
    remarks,
    settings_table,
    shape_of,
    title_of,
)

PROVIDER_LABELS = {"liger": "Liger", "quack": "QuACK", "fla": "flash-linear-attention"}
PACKAGE_FOLDER = Path(__file__).parents[2] / "page" / "data"
HOW_TO_READ = {
    "GB/s": "Figures are GB/s of compulsory bytes; larger is better.",
    "µs": "Figures are microseconds of device time for one call; smaller is better.",
    "host µs": "Figures are microseconds of host time for one call, without waiting for the device; smaller is better.",
}
CEILING_NOTE = "`ceiling` is PyTorch's elementwise kernel over the same bytes."
LARGE_NOTE = "`of the share with 2^28 elements` compares shares of the ceiling."
PEER_NOTE = "`over the fastest peer` is rownorm's speed over the fastest other provider's: above 1, none is faster."
RATIO_NOTE = "Ratios are those of the medians shown."


def publish(
    runs: Sequence[Run],
    folder: Path,
    *,
    parts: Sequence[Part] | None = None,
    package: bool = False,
    table: Path | None = None,
) -> list[Path]:
    """Write the pages and the data file into ``folder``; return what was written.

    The pages show the figures of the first run, those of draw and of parts with settings of all runs; the index judges
    all runs. parts: write the pages of these parts only, neither index nor data file. package: write the data file into
    the installed package instead. table: the tuned table whose figures become the page ``widths.md``. ValueError if the
    runs hold no records, or records of several devices, or if draw is named and no run has measured it.
    """
    devices = {record.environment.device for run in runs for record in run.records}
    if len(devices) != 1:
        raise ValueError(
            f"publish needs records of one device; got {', '.join(sorted(devices)) or 'none'}"
        )
    drawn = any(measured_cases(run, bars.DRAW) for run in runs)
    if parts is not None and bars.DRAW in parts and not drawn:
        raise ValueError("no run has measured drawn widths; rownorm bars measure --part draw")
    selected, first_call = bars.chosen((), drawn=drawn)
    pages = {
        part.page: text
        for part in (selected if parts is None else parts)
        if (text := page_of(runs, part))
    }
    if parts is not None:
        return [write_whole(folder / f"{page}.md", text) for page, text in pages.items()]
    found = [findings_of(run, selected, first_call) for run in runs]
    if runs[0].first_calls:
        pages[bars.FIRST_CALL.name] = first_call_page(runs[0])
    if table is not None:
        pages["widths"] = widths_page(json.loads(table.read_text()))
    studies = sorted(  # rownorm study writes them, and bars publish --part cpu
        file.stem for file in folder.glob("study-*.md") if file.stem not in pages
    )
    of_first_run = [name for name in pages if name != bars.DRAW.page]
    has_draw = drawn or (folder / f"{bars.DRAW.page}.md").exists()
    pages["README"] = index_page(runs, found, of_first_run, studies, has_draw=has_draw)
    data = msgspec.json.encode(published(runs, found))
    name = f"{device_slug(*devices)}.json"
    written = [write_whole(folder / f"{page}.md", text) for page, text in pages.items()]
    return [*written, write_whole((PACKAGE_FOLDER if package else folder) / name, data)]


def device_slug(device: str) -> str:
    """A short file name for a device: ``h200`` for NVIDIA H200."""
    return slug(device).removeprefix("nvidia-").removeprefix("amd-").removeprefix("instinct-")


def measured_cases(run: Run, part: Part) -> list[MeasuredCase]:
    """The cases of a part for which the run has records."""
    return [measured for measured in cases_in(run, part) if measured.rows]


# ---- pages ----


def page(title: str, *paragraphs: str) -> str:
    """A Markdown page."""
    return markdown_page(title, "rownorm bars publish", *paragraphs)


def page_of(runs: Sequence[Run], part: Part) -> str:
    """The page of a part; empty if the first run has no record of it. Of draw, some run has one."""
    if part.is_drawn:
        return draw_page(runs, part)
    if not measured_cases(runs[0], part):
        return ""
    return settings_page(runs, part) if part.has_settings else part_page(runs, part)


def part_page(runs: Sequence[Run], part: Part) -> str:
    """The figures of every provider on every case of a part, from the first run."""
    of_run = f" The first of {len(runs)} runs." if len(runs) > 1 else ""
    return page(
        f"{part.title} ({part.unit})",
        f"{conditions(runs[0])}.{of_run} [How it is measured](../method.md).",
        reading_notes(part),
        *figures_sections(runs[0], part, "##"),
    )


def draw_page(runs: Sequence[Run], part: Part) -> str:
    """The bars, what falls short, and the figures of every run, each with its own seed and widths."""
    found = [judge_part(run, part) for run in runs]
    short = [
        f"- {one.what}: {one.words}"
        for of_run in found
        for one in of_run
        if not one.holds and one.figure is not None
    ]
    return page(
        f"{part.title} ({part.unit})",
        run_list(runs),
        f"{part.note} [How it is measured](../method.md).",
        bars_table(summarize_bars(found), len(runs)),
        *(["## What falls short\n\n" + "\n".join(short)] if short else []),
        reading_notes(part),
        *(
            section
            for number, run in enumerate(runs, start=1)
            for section in (
                f"## Run {number}, "
                + ("nothing drawn" if run.seed is None else f"seed {run.seed}"),
                *figures_sections(run, part, "###"),
            )
        ),
    )


def reading_notes(part: Part) -> str:
    """How to read the tables of figures."""
    notes = [HOW_TO_READ[part.unit], *([CEILING_NOTE] if CEILING in part.providers else [])]
    notes += [PEER_NOTE] if part.peers else []
    notes += [LARGE_NOTE] if part.judges(OF_LARGE) else []
    return " ".join([*notes, RATIO_NOTE])


def figures_sections(run: Run, part: Part, level: str) -> Iterator[str]:
    """The tables of a run, one for each norm and pass."""
    for title, group in itertools.groupby(measured_cases(run, part), key=title_of):
        yield f"{level} {title}\n\n{figures_table(part, list(group))}"


def settings_page(runs: Sequence[Run], part: Part) -> str:
    """Every bar on every case of a part with settings, in all runs."""
    header, lines = settings_table(runs, part)
    n = sum(line[-1] == "holds" for line in lines)
    measured = [row.record for one in measured_cases(runs[0], part) for row in one.rows.values()]
    rounds = max((one.method.rounds for one in measured if one.method), default=0)
    return page(
        f"{part.title} ({part.unit})",
        run_list(runs),
        f"{part.note} {count(rounds, 'round')}. Ratios are those of the medians. "
        "[How it is measured](../method.md).",
        f"{n} of {count(len(lines), 'bar')} hold in every run.",
        markdown(header, lines),
    )


def run_list(runs: Sequence[Run]) -> str:
    """The conditions of each run."""
    return "\n".join(f"- Run {i + 1}: {conditions(run)}." for i, run in enumerate(runs))


def figures_table(part: Part, group: Sequence[MeasuredCase]) -> str:
    """A line for each case: the ceiling, rownorm, the peers, and ratios."""
    has_ceiling = CEILING in part.providers
    of_others = [figure for figure in (OF_PLAIN, OF_LARGE) if part.judges(figure)]
    header = ["rows x columns", *(["ceiling", OURS, "of ceiling"] if has_ceiling else [OURS])]
    header += [PROVIDER_LABELS.get(name, name) for name in part.peers]
    header += [*(["over the fastest peer"] if part.peers else []), *of_others]
    lines = []
    for measured in group:
        ours = measured.rows.get(OURS)
        cells = [shape_of(measured)]
        cells += [formatted(part, measured.value(CEILING))] if has_ceiling else []
        cells += [formatted(part, measured.value(OURS))]
        cells += [_ratio(ours.of_ceiling if ours else None)] if has_ceiling else []
        cells += [formatted(part, measured.value(name)) for name in part.peers]
        cells += [_ratio(measured.over_peers[0])] if part.peers else []
        cells += [_ratio(_figure(measured, name)) for name in of_others]
        lines.append(cells)
    return markdown(header, lines)


def first_call_page(run: Run) -> str:
    """The number of kernels that the first calls compile."""
    return page(
        "Kernels that the first calls compile",
        f"{conditions(run)}. bf16, 512 rows first, then other numbers of rows.",
        markdown(
            ["norm and columns", *bars.FIRST_CALL.most, "bar"],
            first_call_lines(run, bars.FIRST_CALL),
        ),
    )


def widths_page(table: dict[str, Any]) -> str:
    """The share of the ceiling at every width of a tuned table, as measured when the settings were chosen."""
    kinds: dict[str, dict[int, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for row in table["plans"]:
        if row.get("gb_per_s") and row.get("ceiling_gb_per_s"):
            norm = "LayerNorm" if row["center"] else "RMSNorm"
            width = row.get("measured_cols", row["max_cols"])
            share = _ratio(row["gb_per_s"] / row["ceiling_gb_per_s"])
            kinds[_kind(row)][width][f"{norm} {row['direction']}"] = share
    heads = [
        f"{norm} {way}" for way in ("forward", "backward") for norm in ("RMSNorm", "LayerNorm")
    ]
    sections = [
        f"## {kind}\n\n"
        + markdown(
            ["columns", *heads],
            [
                [width, *(shares.get(head, "") for head in heads)]
                for width, shares in sorted(widths.items())
            ],
        )
        for kind, widths in kinds.items()
    ]
    return page(
        "Every tuned width",
        f"{table['device']}, torch {table['torch']}, triton {table['triton']}, {table['date']}.",
        "rownorm's bandwidth over the ceiling's, as measured when the launch settings were chosen: at most 32768 rows, "
        "device time from CUDA graphs. Empty: the table has no entry of its own for this width.",
        *sections,
    )


def index_page(
    runs: Sequence[Run],
    found: Sequence[Sequence[Finding]],
    pages: Sequence[str],
    studies: Sequence[str] = (),
    *,
    has_draw: bool,
) -> str:
    """The conditions of each run, the bars with the worst case of each run, and links to the pages."""
    summaries = summarize_bars(found)
    n = sum(one.verdict == "holds" for one in summaries)
    of_draw = _links([bars.DRAW.page]) if has_draw else "not measured"
    return page(
        "Results",
        run_list(runs),
        f"[How it is measured](../method.md). The pages show the figures of run 1: {_links(pages)}.",
        *([f"More studies: {_links(studies)}."] if studies else []),
        f"{bars.DRAW.title}: {of_draw}.",
        f"## Bars\n\n{n} of {count(len(summaries), 'bar')} hold in every run.",
        bars_table(summaries, len(runs)),
        *_remarks(runs),
    )


def bars_table(summaries: Sequence[BarSummary], n_runs: int) -> str:
    """The bars with the worst case of each run."""
    heads = ["part", "must be", *(f"worst in run {i + 1}" for i in range(n_runs)), "verdict"]
    return markdown(heads, [[one.part, one.bar, *one.worst, one.verdict] for one in summaries])


def _remarks(runs: Sequence[Run]) -> Iterator[str]:
    for i, run in enumerate(runs):
        if lines := list(remarks(run.records)):
            yield f"## Remarks on run {i + 1}\n\n" + "\n".join(f"- {line}" for line in lines)


def _links(pages: Sequence[str]) -> str:
    return ", ".join(f"[{name}]({name}.md)" for name in pages)


def _kind(row: dict[str, Any]) -> str:
    """The kind of a row of a tuned table: ``bf16 with an fp32 residual``."""
    names = {2: "bf16", 4: "fp32"}
    kind = names[row["itemsize"]]
    if row["residual"]:
        kind += f" with a residual in {names[row['residual']]}"
    if row["option"]:
        option = "an activation (silu)" if row["option"] == "activation" else row["option"]
        kind += f" with {option}"
    return kind


def _figure(measured: MeasuredCase, name: str) -> float | None:
    try:
        return FIGURES[name](measured)
    except Missing:
        return None


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# ---- data ----


def published(runs: Sequence[Run], found: Sequence[Sequence[Finding]]) -> Published:
    """The data file: the figures of the first run, and the bars over all runs."""
    last = max(runs[0].records, key=lambda record: record.time)
    here = last.environment
    methods = [one.method for one in runs[0].records if one.method and not one.case.setting]
    return Published(
        device=here.device,
        arch=here.arch,
        peak_bytes_per_second=here.peak_bytes_per_second,
        date=last.time[:10],
        driver=here.driver,
        versions={"torch": here.torch, "triton": here.triton, "rownorm": here.rownorm}
        | here.versions,
        timers=sorted({method.timer for method in methods}),
        cold=all(method.cold for method in methods),
        rounds=max((method.rounds for method in methods), default=0),
        runs=len(runs),
        parts=[
            PublishedPart(
                name=part.name,
                title=part.title,
                unit=part.unit,
                providers=[OURS, *part.providers],
                cases=[_published_case(one) for one in measured_cases(runs[0], part)],
            )
            for part in bars.PARTS
            if measured_cases(runs[0], part) and not part.has_settings
        ],
        bars=[
            PublishedBar(
                part=one.part,
                bar=one.bar,
                cases=len(one.cases),
                worst=one.worst,
                holds=one.verdict == "holds",
            )
            for one in summarize_bars(found)
        ],
    )


def _published_case(measured: MeasuredCase) -> PublishedCase:
    case, ours = measured.case, measured.rows.get(OURS)
    ratio, peer = measured.over_peers
    return PublishedCase(
        operation=case.variant,
        direction=case.direction,
        dtype=case.dtype,
        rows=case.rows,
        cols=case.cols,
        values=[_short(measured.value(name)) for name in (OURS, *measured.part.providers)],
        of_ceiling=_short(ours.of_ceiling if ours else None),
        over_fastest_peer=_short(ratio),
        fastest_peer=peer,
    )


def _short(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")
