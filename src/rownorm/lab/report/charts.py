"""The six charts as altair specifications. The page draws them with the reader's filters, ``plots`` draws all data.

Each reads two named data sets, which the caller supplies: ``points`` (``points.point``) and, for charts with limits,
``limits``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import altair as alt

from ..results.records import CEILING, EAGER, OURS
from ..results.rows import Results
from .points import Point

Spec = dict[str, Any]

# Colors with a contrast of 3 to 1 on white and on near-black; rownorm has the only saturated blue.
LOOKS = {
    OURS: ("#3273f6", "circle"),
    EAGER: ("#d97706", "square"),
    "torch.compile": ("#059669", "triangle-up"),
    "liger": ("#db2777", "diamond"),
    "quack": ("#8b5cf6", "cross"),
    "fla": ("#0891b2", "triangle-down"),
    "flashinfer": ("#5b920b", "triangle-right"),
    "plain_block": ("#64748b", "triangle-left"),
    "plain_loop": ("#a3794f", "diamond"),
    CEILING: ("#7a736d", "circle"),
}
OTHER_LOOKS = (
    ("#0d9488", "circle"),
    ("#c026d3", "square"),
    ("#e11d48", "diamond"),
    ("#4d7c0f", "cross"),
)
SLOWER_TO_FASTER = ("#b45309", "#f0b977", "#f4f4f2", "#8fb8f5", "#1d4ed8")

POINTS, LIMITS = alt.NamedData(name="points"), alt.NamedData(name="limits")
OURS_FIRST = f"datum.provider === '{OURS}'"
CASE_TIPS = ("provider", "operation", "pass", "dtype", "shape")


def looks_of(providers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(color, shape) of each provider, the same in every chart."""
    others = cycle(OTHER_LOOKS)
    return {name: LOOKS.get(name) or next(others) for name in providers}


class Charts:
    """The specifications for one report; a provider has the same color and shape in all of them."""

    def __init__(self, providers: Sequence[str], *, legend: Sequence[str] = ()) -> None:
        """legend: the providers that the legend names; empty for the page, which has its own legend."""
        names, looks = list(providers), looks_of(providers).values()
        shown = None
        if legend:
            shown = alt.Legend(title=None, symbolSize=90, symbolOpacity=1, values=list(legend))
        self.color = alt.Color(
            "provider:N",
            scale=alt.Scale(domain=names, range=[color for color, _ in looks]),
            legend=shown,
        )
        self.shape = alt.Shape(
            "provider:N",
            scale=alt.Scale(domain=names, range=[shape for _, shape in looks]),
            legend=shown,
        )
        self.by_order = alt.Y("provider:N", title=None, sort=names)

    def bandwidth(self) -> Spec:
        """GB/s against the number of columns, with the device's peak."""
        x = _log_axis("cols", "columns", base=2, format="d")
        y = alt.Y("gbps:Q", title="GB/s", scale=alt.Scale(zero=True))
        limits = alt.Chart(LIMITS).encode(y=alt.Y("gbps:Q"))
        peak = limits.mark_rule(strokeDash=[2, 3], opacity=0.8)
        label = limits.mark_text(align="left", dx=4, dy=-7, fontSize=11).encode(
            x=alt.value(0), text="label:N"
        )
        return _spec(peak, label, *self._lines(x, y, "gbps", "time", "bandwidth", "limits", "note"))

    def latency(self) -> Spec:
        """Time of one call against the number of rows."""
        x = _log_axis("rows", "rows", base=2, format="d")
        y = _log_axis("us", "µs per call", base=10, channel=alt.Y)
        return _spec(*self._lines(x, y, "us", "time", "bandwidth", "limits", "note"))

    def speedup(self) -> Spec:
        """A provider against a baseline, rows by columns; the points carry ``speedup`` and ``speedup_text``."""
        base = (
            alt.Chart(POINTS)
            .transform_calculate(doublings="log(datum.speedup) / LN2")
            .encode(
                x=alt.X(
                    "cols:O", title="columns", axis=alt.Axis(labelAngle=0, labelOverlap="greedy")
                ),
                y=alt.Y("rows:O", title="rows", sort="descending"),
                tooltip=_tips(*CASE_TIPS, "speedup_text", "time", "note"),
            )
        )
        cells = base.mark_rect(cornerRadius=3, stroke="currentColor", strokeOpacity=0.15).encode(
            color=alt.Color(
                "doublings:Q",
                scale=alt.Scale(
                    domain=[-2, -1, 0, 1, 2], range=SLOWER_TO_FASTER, clamp=True, interpolate="rgb"
                ),
                legend=None,
            )
        )
        strong = "abs(datum.doublings) > 1.6"
        fitting = "clamp(width / max(1, length(domain('x'))) / 3.4, 7, 12)"
        labels = base.mark_text(fontSize={"expr": fitting}, fontWeight=600).encode(
            text=alt.Text("speedup_short:N"),
            color=alt.condition(strong, alt.value("#ffffff"), alt.value("#1c1917")),
        )
        return _spec(cells, labels)

    def host(self) -> Spec:
        """Host time of a call: the median over cases as a bar, each case as a tick."""
        x = alt.X("host_us:Q", title="µs per call, on the host")
        base = alt.Chart(POINTS).encode(y=self.by_order, color=self.color)
        bars = (
            base.transform_aggregate(
                host_us="median(host_us)", cases="count()", groupby=["provider"]
            )
            .mark_bar(opacity=0.85, height={"band": 0.62})
            .encode(
                x=x,
                tooltip=[
                    alt.Tooltip("provider:N"),
                    alt.Tooltip("host_us:Q", title="median of cases, µs", format=".3~s"),
                    alt.Tooltip("cases:Q"),
                ],
            )
        )
        ticks = base.mark_tick(thickness=1.5, opacity=0.6, height={"band": 0.3}).encode(
            x=x, color=alt.value("currentColor"), tooltip=_tips(*CASE_TIPS, "host")
        )
        return _spec(bars, ticks)

    def accuracy(self) -> Spec:
        """The largest error of each case, in ulp of the output; wrong results are crosses."""
        x = alt.X(
            "ulp:Q",
            title="largest error against fp64, ulp of the output",
            scale=alt.Scale(type="symlog", constant=0.5),
            axis=alt.Axis(
                values=[0, 0.5, 1, 2, 4, 8, 16, 64, 256, 1024, 4096, 2**14, 2**17, 2**20],
                labelExpr="'' + datum.value",
                labelOverlap="greedy",
            ),
        )
        base = alt.Chart(POINTS).encode(
            x=x, y=self.by_order, tooltip=_tips(*CASE_TIPS, "error", "status", "note")
        )
        right = "datum.status === 'ok'"
        cross = alt.value("M-1,-1L1,1M1,-1L-1,1")
        return _spec(
            base.mark_point(filled=False, size=60, strokeWidth=2.5, opacity=0.85).encode(
                color=alt.condition(right, self.color, alt.value("#dc2626")),
                shape=alt.condition(right, self.shape, cross),
            )
        )

    def roofline(self) -> Spec:
        """FLOP/s against arithmetic intensity, with the roofs of the device."""
        x = _log_axis("intensity", "flop per compulsory byte", base=2)
        y = _log_axis("gflops", "GFLOP/s", base=10, channel=alt.Y)
        roofs = alt.Chart(LIMITS).encode(x=x, y=y, detail="roof:N")
        lines = roofs.mark_line(strokeDash=[5, 3], opacity=0.7).encode(
            color=alt.value("currentColor")
        )
        # Labels are above the end of the higher roof and below the start of the lower one, where there is room.
        lower = "datum.roof === 'measured ceiling'"
        labels = roofs.transform_filter("isValid(datum.label)").mark_text(
            align={"expr": f"{lower} ? 'left' : 'right'"},
            dy={"expr": f"{lower} ? 14 : -8"},
            fontSize=11,
        )
        marks = alt.Chart(POINTS).mark_point(filled=True, size=55, opacity=0.75)
        tips = _tips(*CASE_TIPS, "time", "bandwidth", "limits")
        return _spec(
            lines,
            labels.encode(text="label:N"),
            marks.encode(x=x, y=y, color=self.color, shape=self.shape, tooltip=tips),
        )

    def _lines(self, x: Any, y: Any, field: str, *tips: str) -> tuple[alt.Chart, ...]:
        """A line for each provider, with dots and their 20th to 80th percentiles."""
        base = alt.Chart(POINTS).encode(x=x, color=self.color)
        weight = alt.condition(OURS_FIRST, alt.value(3.2), alt.value(1.6))
        dashed = alt.condition(
            f"datum.provider === '{CEILING}'", alt.value([6, 4]), alt.value([1, 0])
        )
        line = base.mark_line().encode(y=y, strokeWidth=weight, strokeDash=dashed)
        spread = base.mark_rule(opacity=0.6, strokeWidth=2).encode(
            y=alt.Y(f"{field}_low:Q"), y2=f"{field}_high:Q"
        )
        size = alt.condition(OURS_FIRST, alt.value(70), alt.value(40))
        dots = base.mark_point(filled=True, opacity=1).encode(
            y=y, shape=self.shape, size=size, tooltip=_tips(*CASE_TIPS, *tips)
        )
        return line, spread, dots


def drawn(spec: Spec, points: Sequence[Point], limits: Sequence[Point]) -> Spec:
    """The specification with its data; without limits, the layers that draw them are left out."""
    layers = [one for one in spec["layer"] if limits or one.get("data", {}).get("name") != "limits"]
    return spec | {"layer": layers, "datasets": {"points": points, "limits": limits}}


def bandwidth_limits(results: Results) -> list[Point]:
    """The device's peak, drawn as a rule. The ceiling is measured, so it is a line like the providers."""
    if not results.peak:
        return []
    return [{"gbps": results.peak / 1e9, "label": f"peak {results.peak / 1e9:,.0f} GB/s"}]


def roofs(results: Results, peak_flops: float | None) -> list[Point]:
    """The corners of each roof: bandwidth times intensity, up to the peak FLOP/s if it is known."""
    corners_of_roofs: list[Point] = []
    for name, bandwidth in (("peak", results.peak), ("measured ceiling", results.ceiling)):
        if not bandwidth:
            continue
        end = min(8.0, peak_flops / bandwidth) if peak_flops else 8.0
        label = f"{name} bandwidth"
        starts = name == "measured ceiling"
        corners = [(0.25, label if starts else None), (end, None if starts else label)]
        if peak_flops:
            corners.append((peak_flops / bandwidth, None))
        corners_of_roofs += [
            {"roof": name, "intensity": at, "gflops": bandwidth * at / 1e9, "label": label}
            for at, label in corners
        ]
    if peak_flops and corners_of_roofs:
        ridge = peak_flops / (results.peak or results.ceiling or 1.0)
        corners_of_roofs += [
            {"roof": "fp32", "intensity": at, "gflops": peak_flops / 1e9, "label": label}
            for at, label in ((ridge, None), (4 * ridge, "fp32 peak"))
        ]
    return corners_of_roofs


def _log_axis(
    field: str, title: str, *, base: int, format: str = ",~g", channel: Any = alt.X
) -> Any:
    scale = alt.Scale(type="log", base=base, nice=False, padding=8)
    label = f"format(datum.value, '{format}')"
    if base == 2:  # label powers of two only, unless the axis is short
        power = "abs(log(datum.value) / LN2 - round(log(datum.value) / LN2)) < 1e-6"
        label = f"{power} || domain('x')[1] < 4 * domain('x')[0] ? {label} : ''"
    else:
        digit = "datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9))"
        label = f"indexof([1, 2, 5], round({digit})) >= 0 ? {label} : ''"
    # With more ticks, a scale of three powers of two would get ticks between them.
    axis = alt.Axis(labelExpr=label, labelOverlap="greedy", tickCount=4 if base == 2 else 8)
    return channel(f"{field}:Q", title=title, scale=scale, axis=axis)


def _tips(*fields: str) -> list[alt.Tooltip]:
    titles = {"speedup_text": "speed-up", "limits": "share", "host": "host time"}
    return [alt.Tooltip(f"{field}:N", title=titles.get(field, field)) for field in fields]


def _spec(*layers: alt.Chart) -> Spec:
    return alt.layer(*layers).to_dict()
