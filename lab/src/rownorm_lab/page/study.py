"""Studies on the page and as plots: tables, and a chart that needs no JavaScript."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import altair as alt
import vl_convert

from ..data import texts
from ..data.files import write_whole
from ..data.measurements import results_of
from ..data.records import CEILING, EAGER, OURS, Record
from ..data.runs import records_in
from ..data.studies import Study, read_study, studies_in
from ..data.study_tables import comparison_table, failures, kernel_tables, notes, step_tables
from ..data.tables import Table
from .chapter import Chapter, chart_html, table_html
from .looks import LOOKS
from .plots import CONFIG

KERNELS = 12  # lines of a table of kernels on the page
COLORS = {"baseline": LOOKS[CEILING][0], "fused": LOOKS[EAGER][0], "rownorm": LOOKS[OURS][0]}
PARTS = ("forward", "backward", "update")


def chapter(folders: Sequence[Path]) -> Chapter | None:
    """The studies in these folders; ValueError if one cannot be read."""
    found = {folder: [read_study(file) for file in studies_in(folder)] for folder in folders}
    settings = {
        folder: [record for record in records_in(folder) if record.case.setting]
        for folder in folders
    }
    studies = [study for one in found.values() for study in one]
    records = [one for of_folder in settings.values() for one in of_folder]
    if not studies and not records:
        return None
    machines = [*(one.environment for one in studies), *(one.environment for one in records)]
    return Chapter(
        "study",
        "Training steps",
        "".join([*map(_one, studies), *(_in_settings(of) for of in settings.values() if of)]),
        folders=[folder for folder in folders if found[folder] or settings[folder]],
        devices=[one.device for one in machines],
        plots=[functools.partial(write_plot, study) for study in studies],
    )


def _one(study: Study) -> str:
    head = f"{study.environment.describe()}, {study.date}; {texts.count(study.steps, 'step')}"
    parts = [
        f"<h3>{escape(study.title)}</h3>",
        f'<p class="how">{escape(head)}. {escape(" ".join(notes(study)))}</p>',
        *(f'<p class="banner">{escape(line)}</p>' for line in failures(study)),
    ]
    if points := _points(study):
        parts.append(chart_html(_chart(study, points, width=360)))  # legible on a phone, too
    tables = [comparison_table(study), *step_tables(study)]
    parts += [table_html(table) for table in tables if table.lines]
    kernels = map(table_html, kernel_tables(study, KERNELS))
    parts.append(f"<details><summary>Kernels of a step</summary>{''.join(kernels)}</details>")
    return "".join(parts)


def _in_settings(records: Sequence[Record]) -> str:
    """Cases in a setting, as ``rownorm bars`` measures them: rownorm and what it is compared with, in one table."""
    by_case: dict[str, list[Record]] = {}
    for record in records:
        by_case.setdefault(record.case.key, []).append(record)
    lines = []
    for of_case in by_case.values():
        rows = {row.provider: row for row in results_of(of_case)[0].rows}
        found = {name: row.time or row.host for name, row in rows.items()}
        other = EAGER if EAGER in found else next((name for name in found if name != OURS), "")
        for name in (name for name in found if name != other):
            times = [found.get(other), found[name]]
            speed = times[0].median / times[1].median if times[0] and times[1] else None
            shown = [texts.duration(t.median) if t else "" for t in times]
            title = of_case[0].case.title
            lines.append([title, name, other, *shown, texts.if_known(speed, texts.times)])
    header = ["case", "provider", "beside", "its time", "with rownorm", "speed"]
    table = Table("In a setting", header, lines)
    how = (
        f"{records[-1].environment.describe()}, {records[-1].time[:10]}. Times are medians; speed is its time over "
        "rownorm's. rownorm bars judge compares them with their bars."
    )
    return table_html(table) + f'<p class="how">{escape(how)}</p>'


def write_plot(study: Study, folder: Path) -> Path | None:
    """Write ``study-<task>.png``; nothing if no step was timed."""
    points = _points(study)
    if not points:
        return None
    png = vl_convert.vegalite_to_png(_chart(study, points, width=560), scale=2)
    return write_whole(folder / f"study-{study.task}.png", png)


def _points(study: Study) -> list[dict[str, Any]]:
    """Medians of forward and backward in milliseconds, and the rest of the step."""
    points = []
    for one in study.records:
        if one.step:
            forward, backward = median(one.forward), median(one.backward)
            values = (forward, backward, max(0.0, median(one.step) - forward - backward))
            points += [
                {
                    "setting": one.setting,
                    "stage": one.stage,
                    "part": part,
                    "ms": 1e3 * value,
                    "order": PARTS.index(part),
                }
                for part, value in zip(PARTS, values, strict=True)
            ]
    return points


def _chart(study: Study, points: list[dict[str, Any]], width: int) -> dict[str, Any]:
    """Bars of the time of a step, one for each stage, in a row for each setting."""
    stages = list(dict.fromkeys(point["stage"] for point in points))
    chart = (
        alt.Chart(alt.Data(values=points))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("ms:Q", title="ms in a step: forward, backward, update"),
            y=alt.Y("stage:N", title=None, sort=stages),
            row=alt.Row("setting:N", title=None, sort=study.settings),
            color=alt.Color(
                "stage:N",
                legend=None,
                scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())),
            ),
            opacity=alt.Opacity(
                "part:N",
                title=None,
                scale=alt.Scale(type="ordinal", domain=list(PARTS), range=[1.0, 0.7, 0.4]),
                legend=alt.Legend(
                    orient="bottom", symbolFillColor=COLORS[OURS], symbolStrokeWidth=0
                ),
            ),
            order="order:Q",
        )
        .properties(width=width, height=26 * len(stages))
    )
    timings = ", CPU timings" if study.environment.kind == "cpu" else ""
    here = study.environment
    subtitle = f"{here.device}{timings}; torch {here.torch}, triton {here.triton}"
    spec: dict[str, Any] = chart.to_dict()
    title = {"text": study.title, "subtitle": subtitle}
    return spec | {"title": title, "padding": 16, "config": CONFIG}
