"""The sections on tuning: what ``rownorm tune`` and ``rownorm tune --study`` saved in a folder."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from ..data import texts
from ..data.analyses import Analysis
from ..data.files import write_whole
from ..data.records import OURS
from ..data.tuning_tables import (
    BLOCK_HEADER,
    FUSION_HEADER,
    block_findings,
    block_table,
    fusion_findings,
    fusion_table,
    seconds_of,
)
from ..data.tunings import STUDY, SUMMARY, BlockStudy, Tuning, read
from .chapter import Chapter
from .looks import LOOKS
from .plots import CONFIG

PREDICTED, MEASURED = "#a8a29e", "#d97706"


def chapter(folders: Sequence[Path]) -> Chapter | None:
    """The tunings in these folders; ValueError if one cannot be read."""
    found = {folder: read(folder, SUMMARY, Tuning) for folder in folders}
    tunings = [one for one in found.values() if one]
    if not tunings:
        return None
    return Chapter(
        "tuning",
        "Tuned plans",
        "".join(map(_tuning, tunings)),
        folders=[folder for folder, one in found.items() if one],
        devices=[one.environment.device for one in tunings],
    )


def study_chapter(folders: Sequence[Path]) -> Chapter | None:
    """The studies of block sizes and fusion in these folders; ValueError if one cannot be read."""
    found = {folder: read(folder, STUDY, BlockStudy) for folder in folders}
    studies = [one for one in found.values() if one]
    if not studies:
        return None
    analyses = [several for one in studies for several in one.blocks]
    parts = [_blocks(several) for several in analyses]
    for fusion in (fusion for one in studies for fusion in one.fusions):
        said = "".join(f"<p>{escape(line)}</p>" for line in fusion_findings(fusion))
        title = f"{fusion.title} on {fusion.device}"
        parts.append(_table(title, FUSION_HEADER, fusion_table(fusion)) + said)
    return Chapter(
        "blocks",
        "Block sizes and fusion",
        "".join(parts),
        folders=[folder for folder, one in found.items() if one],
        devices=[several[0].device for several in analyses],
        plots=[functools.partial(write_plot, several) for several in analyses],
    )


def _tuning(tuning: Tuning) -> str:
    others = ", ".join(f"{n} {cause}" for cause, n in tuning.left_out.items())
    head = f"{tuning.environment.describe()}, {tuning.date}. {texts.count(tuning.timed, 'candidate')} timed"
    head += f"; left out: {others}." if others else "."
    parts = [f'<p class="how">{escape(head)}</p>']
    if tuning.studies_left:
        left = texts.count(tuning.studies_left, "row")
        parts.append(f'<p class="banner">Not finished: {left} left.</p>')
    if tuning.rows:
        header = (
            "problem",
            "columns",
            "GB/s",
            "of the ceiling",
            "settings",
            "next, GB/s",
            "reason",
        )
        parts.append(_table("Rows that were found", header, map(_row, tuning.rows)))
    if tuning.verified:
        lines = [
            [one.study, f"{one.ratio:.3f}", _settings(one.found), _settings(one.shipped)]
            for one in tuning.verified
        ]
        verified = ("row of the shipped table", "time found / shipped", "found", "shipped")
        parts.append(_table("Rows of the shipped table, searched again", verified, lines))
    return "".join(parts)


def _row(row: dict[str, Any]) -> list[str]:
    norm = "LayerNorm" if row["center"] else "RMSNorm"
    words = [f"{norm} {row['direction']}", f"{row['itemsize']}-byte elements"]
    words += [f"{row['residual']}-byte residual"] if row["residual"] else []
    words += [row["option"]] if row["option"] else []
    ceiling = row.get("ceiling_gb_per_s")
    runner_up = row.get("runner_up")
    return [
        ", ".join(words),
        str(row["max_cols"]),
        f"{row['gb_per_s']:,}",
        texts.percent(row["gb_per_s"] / ceiling) if ceiling else "",
        _settings(row["settings"]),
        f"{runner_up['gb_per_s']:,}" if runner_up else "",
        row.get("reason", ""),
    ]


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _blocks(analyses: Sequence[Analysis]) -> str:
    first = analyses[0]
    title = f"{first.case.title} on {first.device} ({first.target})"
    lines = [line[:-1] for line in block_table(analyses)]  # without the bar of the terminal
    said = "".join(f"<p>{escape(line)}</p>" for line in block_findings(analyses))
    drawn = f'<div class="panel">{vl_convert.vegalite_to_svg(_chart(analyses))}</div>'
    return _table(title, BLOCK_HEADER[:-1], lines) + drawn + said


def write_plot(analyses: Sequence[Analysis], folder: Path) -> Path | None:
    """Write ``blocks-<case>.png``; nothing without block sizes."""
    if not any(one.block for one in analyses):
        return None
    png = vl_convert.vegalite_to_png(_chart(analyses), scale=2)
    name = texts.slug(f"{analyses[0].case.kind} {analyses[0].case.cols}")
    return write_whole(folder / f"blocks-{name}.png", png)


def _chart(analyses: Sequence[Analysis]) -> dict[str, Any]:
    """Time and bandwidth against block size, predicted and measured; rownorm's own plan as a line."""
    points = [point for one in analyses if one.block for point in _points(one)]
    blocks = sorted({point["block"] for point in points})
    ours = [
        {"us": 1e6 * seconds_of(one), "gbps": one.compulsory_bytes / seconds_of(one) / 1e9}
        for one in analyses
        if not one.block
    ]
    panels = [
        _panel(points, ours, blocks, field, title)
        for field, title in (("us", "time, µs"), ("gbps", "bandwidth, GB/s"))
    ]
    first = analyses[0]
    device = first.measured.device if first.measured else f"{first.device}, predicted"
    title = {
        "text": f"{first.case.title}: block size of a loop over the row",
        "subtitle": f"{device}; Triton {first.triton}. The blue line is rownorm's plan",
    }
    spec: dict[str, Any] = alt.hconcat(*panels).to_dict()
    return spec | {"title": title, "padding": 16, "config": CONFIG}


def _points(one: Analysis) -> list[dict[str, Any]]:
    times = {"predicted": one.predicted_seconds}
    if one.measured:
        times["measured"] = one.measured.seconds
    return [
        {
            "block": one.block,
            "source": source,
            "us": 1e6 * seconds,
            "gbps": one.compulsory_bytes / seconds / 1e9,
        }
        for source, seconds in times.items()
    ]


def _panel(
    points: list[dict[str, Any]],
    ours: list[dict[str, Any]],
    blocks: list[int],
    field: str,
    title: str,
) -> alt.LayerChart:
    sources = list(dict.fromkeys(point["source"] for point in points))
    line = (
        alt.Chart(alt.Data(values=points))
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "block:O", title="block size, columns", sort=blocks, axis=alt.Axis(labelAngle=0)
            ),
            y=alt.Y(f"{field}:Q", title=title),
            color=alt.Color(
                "source:N",
                title=None,
                scale=alt.Scale(domain=sources, range=[PREDICTED, MEASURED]),
                legend=alt.Legend(orient="bottom"),
            ),
        )
    )
    rule = (
        alt.Chart(alt.Data(values=ours))
        .mark_rule(color=LOOKS[OURS][0], strokeDash=[5, 4])
        .encode(y=alt.Y(f"{field}:Q", title=title))
    )
    return (line + rule).properties(width=330, height=220)


def _table(title: str, header: Sequence[str], lines: Any) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td{_kind(cell)}>{escape(cell)}</td>" for cell in line) + "</tr>"
        for line in lines
    )
    return (
        f'<h3>{escape(title)}</h3><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _kind(cell: str) -> str:
    return ' class="wrap"' if len(cell) > 60 else ""
