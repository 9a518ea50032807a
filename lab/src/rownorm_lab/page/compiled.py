"""The section on compiled kernels: what ``rownorm analyze --out FOLDER`` and ``rownorm tune --study`` saved."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from ..data import own_analyses, texts
from ..data.analyses import Analysis, read
from ..data.analysis_tables import facts, findings, seconds_of, table
from ..data.files import write_whole
from ..data.records import OURS
from ..data.tables import Table
from .chapter import Chapter, chart_html, facts_html, table_html
from .looks import LOOKS
from .plots import CONFIG

SIDE_BY_SIDE = 5  # columns of a table of launches
PREDICTED, MEASURED = "#a8a29e", "#d97706"

HOW = (
    '<p class="how">From <code>rownorm analyze</code>, without running them. <em>compiler</em>: read from the compiled '
    "code. <em>derived</em>: from its addresses and the limits of the device. <em>measured</em>: timed on a GPU.</p>"
)


def chapter(folders: Sequence[Path]) -> Chapter | None:
    """The analyses in these folders, a table for each case and target; ValueError if one cannot be read."""
    found = {folder: read(folder) for folder in folders}
    analyses = [one for several in found.values() for one in several]
    if not analyses:
        return None
    keyed = groupby(analyses, key=lambda one: (one.case.title, one.device, one.target))
    cases = [list(group) for _, group in keyed]
    return Chapter(
        "compiled",
        "Compiled kernels",
        HOW + "".join(map(_section, cases)),
        folders=[folder for folder, several in found.items() if several],
        devices=[one.device for one in analyses],
        plots=[functools.partial(write_plot, several) for several in cases],
    )


def _section(analyses: Sequence[Analysis]) -> str:
    """A table, a chart where there are block sizes, and what the figures say."""
    first, drawn = analyses[0], ""
    if any(one.block for one in analyses):
        charts = (chart_html(panel.to_dict()) for panel in _panels(analyses))
        drawn = (
            "<h3>Block size of a loop over the row; the blue line is rownorm's plan</h3>"
            f'<div class="panels two">{"".join(charts)}</div>'
        )
    shown = Table(f"{first.case.title} on {first.device} ({first.target})", *table(analyses))
    said = "".join(f"<p>{escape(one)}</p>" for one in findings(analyses))
    return table_html(shown) + facts_html(facts(analyses)) + drawn + said


def own_chapter(folders: Sequence[Path]) -> Chapter | None:
    """The users' kernels that were analyzed or tuned into these folders; ValueError if one cannot be read."""
    found = {folder: own_analyses.read(folder) for folder in folders}
    analyses = [one for several in found.values() for one in several]
    if not analyses:
        return None
    keyed = groupby(analyses, key=lambda one: (one.kernel, one.device, one.target))
    parts = []
    for _, group in keyed:
        same = list(group)
        title = f"{same[0].kernel} on {same[0].device} ({same[0].target})"
        said = "".join(f"<p>{escape(one)}</p>" for one in own_analyses.findings(same))
        parts += [table_html(_own_table(title, same))]
        parts += [facts_html(own_analyses.facts(same[0])), said]
    return Chapter(
        "own-kernels",
        "Your kernels",
        HOW + "".join(parts),
        folders=[folder for folder, several in found.items() if several],
        devices=[one.device for one in analyses],
    )


def _own_table(title: str, analyses: Sequence[own_analyses.OwnAnalysis]) -> Table:
    """All figures, a column for each launch; if these would not fit, the figures that decide, a line for each."""
    if len(analyses) <= SIDE_BY_SIDE:
        return Table(title, *own_analyses.table(analyses))
    header, lines = own_analyses.brief_table(analyses)
    labelled = [[one.label, *line] for one, line in zip(analyses, lines, strict=True)]
    return Table(title, ["", *header], labelled)


def write_plot(analyses: Sequence[Analysis], folder: Path) -> Path | None:
    """Write ``blocks-<case>.png``; nothing without block sizes."""
    if not any(one.block for one in analyses):
        return None
    png = vl_convert.vegalite_to_png(_chart(analyses), scale=2)
    first = analyses[0]
    name = texts.slug(f"{first.case.kind} {first.case.cols} {first.target}")
    return write_whole(folder / f"blocks-{name}.png", png)


def _chart(analyses: Sequence[Analysis]) -> dict[str, Any]:
    """Time and bandwidth against block size, predicted and measured; rownorm's own plan as a line."""
    first = analyses[0]
    device = first.measured.device if first.measured else f"{first.device}, predicted"
    title = {
        "text": f"{first.case.title}: block size of a loop over the row",
        "subtitle": f"{device}; Triton {first.triton}. The blue line is rownorm's plan",
    }
    spec: dict[str, Any] = alt.hconcat(*_panels(analyses)).to_dict()
    return spec | {"title": title, "padding": 16, "config": CONFIG}


def _panels(analyses: Sequence[Analysis]) -> list[alt.LayerChart]:
    """Time, and bandwidth."""
    loops = [one for one in analyses if one.block]
    points = [
        {"block": one.block, "source": source, **_figures(one, seconds)}
        for one in loops
        for source, seconds in _times(one).items()
    ]
    blocks = sorted({one.block or 0 for one in loops})
    sources = list(dict.fromkeys(point["source"] for point in points))
    lines = (
        alt.Chart(alt.Data(values=points))
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "block:O", title="block size, columns", sort=blocks, axis=alt.Axis(labelAngle=0)
            ),
            color=alt.Color(
                "source:N",
                title=None,
                scale=alt.Scale(domain=sources, range=[PREDICTED, MEASURED]),
                legend=alt.Legend(orient="bottom"),
            ),
        )
    )
    ours = [_figures(one, seconds_of(one)) for one in analyses if not one.block]
    rules = alt.Chart(alt.Data(values=ours)).mark_rule(color=LOOKS[OURS][0], strokeDash=[5, 4])
    return [
        (lines.encode(y=y) + rules.encode(y=y)).properties(width=330, height=220)
        for y in (alt.Y("us:Q", title="time, µs"), alt.Y("gbps:Q", title="bandwidth, GB/s"))
    ]


def _times(one: Analysis) -> dict[str, float]:
    measured = {"measured": one.measured.seconds} if one.measured else {}
    return {"predicted": one.predicted_seconds} | measured


def _figures(one: Analysis, seconds: float) -> dict[str, Any]:
    return {"us": 1e6 * seconds, "gbps": one.compulsory_bytes / seconds / 1e9}
