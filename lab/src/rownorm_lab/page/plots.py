"""The charts as PNG files, from the same specifications and data as the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import vl_convert

from ..data import texts
from ..data.files import write_whole
from ..data.measurements import Group, Results
from ..data.records import CEILING
from .charts import Charts, Spec, drawn
from .fastest import FASTEST
from .limits import bandwidth_limits, peak_flops, roofs
from .points import Point, points_of

FONT = "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
INK = "#292524"
CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "gridColor": "#e7e5e4",
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": "#a8a29e",
    },
    "title": {"anchor": "start", "fontSize": 15, "subtitleColor": "#57534e", "offset": 12},
    "legend": {"labelFontSize": 12, "labelColor": INK},
    "text": {"color": INK},
    "rule": {"color": INK},
}


class Plot(NamedTuple):
    """One PNG file: its name and its contents."""

    name: str
    title: str
    spec: Spec
    points: list[Point]
    limits: Sequence[Point] = ()
    height: int = 320


def write_plots(
    results: list[Results], folder: Path, on_step: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write ``<chart>-<operation>-<pass>-<dtype>.png``; with several devices, the device comes first."""
    written = []
    for one in results:
        prefix = f"{texts.slug(one.device)}-" if len(results) > 1 else ""
        for plot in plots_of(one):
            path = folder / f"{prefix}{plot.name}.png"
            on_step(f"drawing {path.name}")
            written.append(write_whole(path, _png(plot, one)))
    return written


def plots_of(results: Results) -> Iterator[Plot]:
    """Every plot that has data."""
    points = points_of(results)[::-1]  # drawn last, so on top: rownorm
    charts = Charts(results.providers)
    for group in results.groups:
        yield from _plots_of_group(results, charts, group, _in_group(points, group))
    for direction in sorted({group.direction for group in results.groups}):
        of_pass = [point for point in points if point["pass"] == direction]
        if called := [point for point in of_pass if "host_us" in point]:
            title = f"Host time of a {direction} call"
            yield Plot(f"host-cost-{direction}", title, charts.host(), called)
        if judged := [point for point in of_pass if "ulp" in point]:
            title = f"Largest error against fp64: {direction}"
            yield Plot(f"accuracy-{direction}", title, charts.accuracy(), judged)
    limits = roofs(results, peak_flops(results))
    if worked := [p for p in points if "gflops" in p and p["provider"] != CEILING]:
        yield Plot("roofline", "Roofline", charts.roofline(), worked, limits)


def _plots_of_group(
    results: Results, charts: Charts, group: Group, points: list[Point]
) -> Iterator[Plot]:
    place = texts.slug(f"{group.operation}-{group.direction}-{group.dtype}")
    timed = [point for point in points if "us" in point]
    if wide := [point for point in timed if point.get("tallest")]:
        limits = bandwidth_limits(results.peak)
        title = f"Bandwidth: {group}"
        if one_width(wide):
            title, spec = f"{title}, {wide[0]['shape']}", charts.bandwidth_bars()
            yield Plot(f"bandwidth-{place}", title, spec, wide, limits, 30 * len(wide))
        else:
            yield Plot(f"bandwidth-{place}", title, charts.bandwidth(), wide, limits)
    if tall := [point for point in timed if point.get("scaling")]:
        title = f"Latency against rows: {group}, {tall[0]['cols']} columns"
        yield Plot(f"latency-{place}", title, charts.latency(), tall)
    if cells := speedup_cells(timed, results.subject):
        title = f"{results.subject} over the {FASTEST} provider: {group}"
        height = 44 * len({cell["rows"] for cell in cells})
        spec = charts.speedup_bars() if one_width(cells) else charts.speedup()
        yield Plot(f"speedup-{place}", title, spec, cells, height=height)


def one_width(points: list[Point]) -> bool:
    """Whether all points have the same number of columns; they are drawn as bars then."""
    return len({point["cols"] for point in points}) == 1


def speedup_cells(points: list[Point], subject: str | None) -> list[Point]:
    """The cells of a heat map: the subject's points with their speed-up over the fastest other provider."""
    cells = []
    for point in points:
        speedups = point.get("speedups", {})
        if point["provider"] == subject and speedups:
            other = min(speedups, key=lambda name: speedups[name][0])
            ratio, text, _ = speedups[other]
            fields = {
                "speedup": ratio,
                "speedup_short": text.split(" ")[0],
                "speedup_over": other,
                "speedup_text": f"{text} over {other}",
            }
            cells.append(point | fields)
    return cells


def _in_group(points: list[Point], group: Group) -> list[Point]:
    return [p for p in points if Group(p["operation"], p["pass"], p["dtype"]) == group]


def _png(plot: Plot, results: Results) -> bytes:
    environment = results.environments[-1]
    software = f"torch {environment.torch}, triton {environment.triton}"
    timings = ", CPU timings" if results.kind == "cpu" else ""
    spec = drawn(plot.spec, plot.points, plot.limits) | {
        "title": {"text": plot.title, "subtitle": f"{results.device}{timings}; {software}"},
        "width": 560,
        "height": plot.height,
        "padding": 16,
        "config": CONFIG,
    }
    return vl_convert.vegalite_to_png(spec, scale=2)
