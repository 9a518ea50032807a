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

from ..results.records import CEILING
from ..results.rows import Results, provider_order
from . import sections
from .charts import Charts, Spec, bandwidth_limits, looks_of, roofs
from .peaks import peak_flops
from .points import points_of
from .vega import library

CHARTS = ("bandwidth", "speedup", "latency", "host", "accuracy", "roofline")


def page(
    results: Sequence[Results],
    damaged: Sequence[tuple[int, str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The whole page. damaged: lines that could not be read. notes: sentences about the records, shown at the top."""
    return Template(part("page.html")).substitute(
        title=escape(sections.title(results)),
        css=part("page.css"),
        subtitle=sections.subtitle(results),
        damaged=sections.damaged(damaged) + sections.notes(notes),
        devices="\n".join(map(sections.device, results)) if results else sections.NOTHING,
        filters=sections.filters(results) if results else "",
        charts=part("charts.html") if results else "",
        tables=sections.tables(results, part("method.html")) if results else "",
        data=island(_data(results)) if results else "{}",
        scripts=_scripts() if results else "",
    )


def island(value: Any) -> str:
    """JSON escaped so that it cannot end the script element that contains it."""
    text = msgspec.json.encode(value).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def specs(providers: Sequence[str]) -> dict[str, Spec]:
    """The six charts, by the id of their section in ``charts.html``."""
    charts = Charts(providers)
    return {name: getattr(charts, name)() for name in CHARTS}


def _data(results: Sequence[Results]) -> dict[str, Any]:
    points = [point for one in results for point in points_of(one)]
    fields = list(dict.fromkeys(name for point in points for name in point))
    providers = sorted({name for one in results for name in one.providers}, key=provider_order)
    return {
        "fields": fields,
        "rows": [[point.get(name) for name in fields] for point in points],
        "providers": providers,
        "colors": {name: color for name, (color, _) in looks_of(providers).items()},
        "ceiling": CEILING,
        "specs": specs(providers),
        "devices": [
            {
                "name": one.device,
                "subject": one.subject,
                "baseline": one.baseline,
                "limits": {
                    "bandwidth": bandwidth_limits(one),
                    "roofline": roofs(one, peak_flops(one)),
                },
            }
            for one in results
        ],
    }


def _scripts() -> str:
    return f"<script>{library()}</script>\n<script>\n{part('page.js')}</script>"


def part(name: str) -> str:
    """The text of a file of this folder."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
