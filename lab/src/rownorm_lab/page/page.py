"""``report.html``: one self-contained file that opens offline.

The verdict, the table and the environment are plain HTML. The charts are drawn in the browser by Vega-Lite, whose
JavaScript is inside the page, from the same specifications as the PNG files.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import msgspec

from ..data.measurements import Results, provider_order
from ..data.published import Published
from ..data.records import CEILING, EAGER
from . import sections, shipped
from .chapter import Chapter
from .charts import Charts, Spec
from .fastest import FASTEST
from .limits import bandwidth_limits, peak_flops, roofs
from .looks import looks_of
from .points import points_of
from .vega import library

CHARTS = (
    "bandwidth",
    "bandwidth_bars",
    "speedup",
    "speedup_bars",
    "latency",
    "host",
    "accuracy",
    "roofline",
)
SCRIPTS = ("data.js", "figures.js", "drawing.js", "table.js", "filters.js", "hints.js")
FOOTER = "Written by <code>rownorm report</code> from records and nothing else."
FOOTER_WITH_SHIPPED = (
    "Written by <code>rownorm report</code> from records and the results that the package ships."
)


def page(
    results: Sequence[Results],
    damaged: Sequence[tuple[int, str]] = (),
    notes: Sequence[str] = (),
    chapters: Sequence[Chapter] = (),
) -> str:
    """The whole page. damaged: lines that could not be read. notes: sentences about the records, shown at the top."""
    without_gpu = bool(results) and all(one.kind == "cpu" for one in results)
    gpu_results = shipped.shipped() if without_gpu else None
    measured = any(one.measured for one in results)
    bar = sections.contents(chapters) + (sections.filters() if measured else "")
    return Template(part("page.html")).substitute(
        title=escape(sections.title(results, chapters)),
        css=part("page.css"),
        subtitle=sections.subtitle(results, chapters),
        damaged=sections.damaged(damaged),
        opening=_opening(results, bool(chapters)) + sections.notes(notes),
        bar=f'<div class="bar">{bar}</div>' if results else "",
        charts=part("charts.html") if measured else "",
        chapters="".join(one.section for one in chapters),
        tables=(sections.tables(results, part("method.html")) if results else "")
        + (shipped.folded(gpu_results) if gpu_results else ""),
        footer=FOOTER_WITH_SHIPPED if gpu_results else FOOTER,
        data=island(_data(results, gpu_results)) if results else "{}",
        scripts=_scripts()
        if results
        else f"<script>{part('hints.js')}</script>"
        if chapters
        else "",
    )


def _opening(results: Sequence[Results], has_chapters: bool) -> str:
    """The verdict on each device."""
    if not results:
        return "" if has_chapters else sections.NOTHING
    return "\n".join(map(sections.device, results))


def island(value: Any) -> str:
    """JSON escaped so that it cannot end the script element that contains it."""
    text = msgspec.json.encode(value).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def specs(providers: Sequence[str]) -> dict[str, Spec]:
    """The charts by name: the id of their section in ``charts.html``, or that with ``_bars``."""
    charts = Charts(providers)
    return {name: getattr(charts, name)() for name in CHARTS}


def _data(results: Sequence[Results], gpu_results: Published | None) -> dict[str, Any]:
    points = [point for one in results for point in points_of(one)]
    fields = list(dict.fromkeys(name for point in points for name in point))
    providers = sorted({name for one in results for name in one.providers}, key=provider_order)
    return {
        "fields": fields,
        "rows": [[point.get(name) for name in fields] for point in points],
        "providers": providers,
        "colors": {name: color for name, (color, _) in looks_of(providers).items()},
        "ceiling": CEILING,
        "eager": EAGER,
        "fastest": FASTEST,
        "specs": specs(providers),
        "shipped": _shipped_charts(gpu_results) if gpu_results else None,
        "devices": [
            {
                "name": one.device,
                "subject": one.subject,
                "kind": one.kind,
                "limits": {
                    "bandwidth": bandwidth_limits(one.peak),
                    "roofline": roofs(one, peak_flops(one)),
                },
            }
            for one in results
        ],
    }


def _shipped_charts(published: Published) -> dict[str, Any]:
    points = shipped.chart_points(published)
    providers = sorted({point["provider"] for point in points}, key=provider_order)
    return {
        "points": points,
        "providers": providers,
        "spec": Charts(providers).bandwidth(),
        "limits": bandwidth_limits(published.peak_bytes_per_second),
    }


def _scripts() -> str:
    ours = "\n".join(map(part, SCRIPTS))
    return (
        f'<script>{library()}</script>\n<script>\n"use strict";\n(() => {{\n{ours}}})();\n</script>'
    )


def part(name: str) -> str:
    """The text of a file of this folder."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
