"""The charts as altair specifications. The page draws them with the reader's filters, ``plots`` draws all data.

Each reads two named data sets, which the caller supplies: ``points`` (``points.point``) and, for charts with limits,
``limits``. ``drawn`` adds them, and the parameters: ``shown``, the providers in the legend, ``columns`` of the legend,
and ``ticks``, the labeled values of an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ..data.measurements import provider_order
from ..data.records import CEILING, OURS
from .axes import (
    BY_WIDTH,
    COUNT,
    label_beside,
    log_axis,
    provider_legend,
    speedup_color,
    ticked_axis,
    ticks,
    tips,
)
from .limits import MEASURED
from .looks import looks_of
from .points import Point

Spec = dict[str, Any]

POINTS, LIMITS = alt.NamedData(name="points"), alt.NamedData(name="limits")
OURS_FIRST = f"datum.provider === '{OURS}'"
MEASURED_ROOF = f"datum.roof === '{MEASURED}'"
# The color of a text on the color of a speed-up, which is dark for large ones.
DARK_OR_WHITE = alt.condition(
    "abs(datum.doublings) > 0.75", alt.value("#ffffff"), alt.value("#1c1917")
)
LEGEND_COLUMNS = 5  # of a plot; on the page they depend on the width
CASE_TIPS = ("provider", "operation", "pass", "dtype", "shape")


class Charts:
    """The specifications for one report; a provider has the same color and shape in all of them."""

    def __init__(self, providers: Sequence[str]) -> None:
        names, looks = list(providers), looks_of(providers).values()
        colors = alt.Scale(domain=names, range=[color for color, _ in looks])
        shapes = alt.Scale(domain=names, range=[shape for _, shape in looks])
        legend = provider_legend()
        self.color = alt.Color("provider:N", scale=colors, legend=legend)
        self.shape = alt.Shape("provider:N", scale=shapes, legend=legend)
        # Where the axis names the providers, there is no legend.
        self.named_color = alt.Color("provider:N", scale=colors, legend=None)
        self.named_shape = alt.Shape("provider:N", scale=shapes, legend=None)
        self.by_order = alt.Y("provider:N", title=None, sort=names)

    def bandwidth(self) -> Spec:
        """GB/s against the number of columns, with the device's peak."""
        x = ticked_axis("cols", "columns")
        y = alt.Y("gbps:Q", title="GB/s", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6))
        limits = alt.Chart(LIMITS).encode(y=alt.Y("gbps:Q"))
        peak = limits.mark_rule(strokeDash=[2, 3], opacity=0.8)
        label = limits.mark_text(align="left", dx=4, dy=-7, fontSize=11).encode(
            x=alt.value(0), text="label:N"
        )
        lines = self._lines(x, y, "gbps", "time", "bandwidth", "limits", "note")
        return _spec(peak, label, *lines, ticked="cols")

    def bandwidth_bars(self) -> Spec:
        """GB/s of each provider, where there is one width."""
        x = alt.X("gbps:Q", title="GB/s", axis=alt.Axis(tickCount=BY_WIDTH))
        peak = alt.Chart(LIMITS).mark_rule(strokeDash=[2, 3], opacity=0.8)
        label = alt.Chart(LIMITS).mark_text(align="right", y=-8, fontSize=11)
        base = alt.Chart(POINTS).encode(
            y=self.by_order, tooltip=tips(*CASE_TIPS, "time", "bandwidth", "limits", "note")
        )
        return _spec(
            peak.encode(x=x),
            label.encode(x=x, text="label:N"),
            base.mark_bar(height={"band": 0.7}).encode(x=x, color=self.named_color),
            label_beside(base, "split(datum.bandwidth, ' (')[0]"),
        )

    def latency(self) -> Spec:
        """Time of one call against the number of rows."""
        x = ticked_axis("rows", "rows")
        y = log_axis("us", "µs per call", channel=alt.Y)
        lines = self._lines(x, y, "us", "time", "bandwidth", "limits", "note")
        return _spec(*lines, ticked="rows")

    def speedup(self) -> Spec:
        """A provider against a baseline, rows by columns; the points carry ``speedup`` and texts about it."""
        base = self._speedups().encode(
            x=alt.X(
                "cols:O",
                title="columns",
                axis=alt.Axis(
                    labelAngle=0, labelOverlap="parity", labelSeparation=6, labelExpr=COUNT
                ),
            ),
            y=alt.Y("rows:O", title="rows", sort="descending", axis=alt.Axis(labelExpr=COUNT)),
        )
        cell_width = "width / max(1, length(domain('x')))"
        named = f"{cell_width} > 62"  # wide enough for the name of the baseline
        number = "format(datum.speedup, datum.speedup < 9.995 ? '.2f' : '.0f')"
        unit = f"({cell_width} < 40 ? '' : 'x')"
        ratio = base.mark_text(
            text={"expr": f"{number} + {unit}"},
            fontSize={"expr": f"clamp({cell_width} / 2.9, 7, 12)"},
            fontWeight=600,
            dy={"expr": f"{named} ? -6 : 0"},
        )
        name = base.mark_text(fontSize=9.5, dy=8, opacity={"expr": f"{named} ? 1 : 0"})
        return _spec(
            base.mark_rect(cornerRadius=3, stroke="currentColor", strokeOpacity=0.15).encode(
                color=speedup_color(legend=True)
            ),
            ratio.encode(color=DARK_OR_WHITE),
            name.encode(text="speedup_over:N", color=DARK_OR_WHITE),
        )

    def speedup_bars(self) -> Spec:
        """The same as bars, where there is one width."""
        base = self._speedups().encode(y=alt.Y("rows:O", title="rows", sort="ascending"))
        x = alt.X("speedup:Q", title="speed-up", axis=alt.Axis(tickCount=BY_WIDTH))
        even = alt.Chart(alt.Data(values=[{"speedup": 1}])).mark_rule(
            strokeDash=[2, 3], opacity=0.8
        )
        bars = base.mark_bar(height={"band": 0.7}, stroke="currentColor", strokeOpacity=0.15)
        name = base.mark_text(align="left", x=8, fontSize=10.5, text={"expr": "datum.name || ''"})
        return _spec(
            bars.encode(x=x, color=speedup_color(legend=False)),
            name.encode(color=DARK_OR_WHITE),
            even.encode(x=x),
            label_beside(base, "datum.speedup_short + ' over ' + datum.speedup_over"),
        )

    def _speedups(self) -> alt.Chart:
        return (
            alt.Chart(POINTS)
            .transform_calculate(doublings="log(datum.speedup) / LN2")
            .encode(tooltip=tips(*CASE_TIPS, "speedup_text", "time", "note"))
        )

    def host(self) -> Spec:
        """Host time of a call: the median over cases as a bar, each case as a tick."""
        x = alt.X("host_us:Q", title="µs per call, on the host", axis=alt.Axis(tickCount=BY_WIDTH))
        base = alt.Chart(POINTS).encode(y=self.by_order, color=self.named_color)
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
            x=x, color=alt.value("currentColor"), tooltip=tips(*CASE_TIPS, "host")
        )
        return _spec(bars, ticks)

    def accuracy(self) -> Spec:
        """The largest error of each case, in ulp of the output; wrong results are crosses."""
        x = alt.X(
            "ulp:Q",
            title="largest error against fp64, ulp of the output",
            scale=alt.Scale(type="symlog", constant=0.5, domain={"unionWith": [0, 2]}),
            axis=alt.Axis(
                values=[0, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096, 2**14, 2**17, 2**20],
                labelExpr="'' + datum.value",
                labelOverlap="greedy",
            ),
        )
        base = alt.Chart(POINTS).encode(
            x=x, y=self.by_order, tooltip=tips(*CASE_TIPS, "error", "status", "note")
        )
        right = "datum.status === 'ok'"
        cross = alt.value("M-1,-1L1,1M1,-1L-1,1")
        return _spec(
            base.mark_point(filled=False, size=60, strokeWidth=2.5, opacity=0.85).encode(
                color=alt.condition(right, self.named_color, alt.value("#dc2626")),
                shape=alt.condition(right, self.named_shape, cross),
            )
        )

    def roofline(self) -> Spec:
        """FLOP/s against arithmetic intensity, with the roofs of the device."""
        x = log_axis("intensity", "flop per compulsory byte")
        y = log_axis("gflops", "GFLOP/s", channel=alt.Y, padding=24)
        roofs = alt.Chart(LIMITS).encode(x=x, y=y, detail="roof:N")
        dashes = alt.condition(MEASURED_ROOF, alt.value([6, 4]), alt.value([2, 3]))
        lines = roofs.mark_line(opacity=0.8, strokeWidth=1.5).encode(
            color=alt.value("currentColor"), strokeDash=dashes
        )
        # The label of the higher roof is above it, that of the lower one below it.
        labels = roofs.transform_filter("isValid(datum.label)").mark_text(
            align={"expr": f"{MEASURED_ROOF} ? 'left' : 'right'"},
            dx={"expr": f"{MEASURED_ROOF} ? 8 : -6"},
            dy={"expr": f"{MEASURED_ROOF} ? 12 : -8"},
            fontSize=11,
        )
        shown = tips(*CASE_TIPS, "time", "bandwidth", "limits")
        marks = alt.Chart(POINTS).mark_point(filled=True, size=55, opacity=0.75)
        return _spec(
            lines,
            labels.encode(text="label:N"),
            marks.encode(x=x, y=y, color=self.color, shape=self.shape, tooltip=shown),
        )

    def _lines(self, x: Any, y: Any, field: str, *tip_fields: str) -> tuple[alt.Chart, ...]:
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
            y=y, shape=self.shape, size=size, tooltip=tips(*CASE_TIPS, *tip_fields)
        )
        return line, spread, dots


def drawn(spec: Spec, points: Sequence[Point], limits: Sequence[Point]) -> Spec:
    """The specification with its data and parameters; without limits, the layers that draw them are left out."""
    layers = [one for one in spec["layer"] if limits or one.get("data", {}).get("name") != "limits"]
    ticked = spec["usermeta"]["ticked"]
    params = {
        "shown": sorted({point["provider"] for point in points}, key=provider_order),
        "columns": LEGEND_COLUMNS,
        "ticks": ticks(point[ticked] for point in points) if ticked else [],
    }
    return spec | {
        "layer": layers,
        "params": [{"name": name, "value": value} for name, value in params.items()],
        "datasets": {"points": points, "limits": limits},
    }


def _spec(*layers: alt.Chart, ticked: str = "") -> Spec:
    """The layers as one specification. ticked: the field of the axis that shows the parameter ``ticks``."""
    return alt.layer(*layers).to_dict() | {"usermeta": {"ticked": ticked}}
