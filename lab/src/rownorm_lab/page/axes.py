"""Axes, tooltips, legends and labels that several charts share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt

from .looks import DOUBLINGS, SLOWER_TO_FASTER

FEW_TICKS = 6  # up to so many values, an axis labels each of them; else the powers of two
# A number of ticks that leaves room for their labels.
BY_WIDTH = {"expr": "clamp(width / 70, 3, 9)"}
# 512, 4096, 16k, 1M: the number of a tick, short where it is a large multiple of 1024
COUNT = (
    "datum.value < 10000 || datum.value % 1024 ? format(datum.value, 'd') : "
    "datum.value % 1048576 ? datum.value / 1024 + 'k' : datum.value / 1048576 + 'M'"
)


def ticks(values: Iterable[int]) -> list[int]:
    """The values that an axis labels: all if they are few, else the powers of two between them."""
    found = sorted(set(values))
    if len(found) <= FEW_TICKS:
        return found
    return [2**i for i in range(32) if found[0] <= 2**i <= found[-1]]


def ticked_axis(field: str, title: str) -> alt.X:
    """A logarithmic axis with labels at the parameter ``ticks``."""
    axis = alt.Axis(
        values={"expr": "ticks"}, labelExpr=COUNT, labelOverlap="parity", labelSeparation=6
    )
    return alt.X(f"{field}:Q", title=title, scale=_log_scale(), axis=axis)


def log_axis(field: str, title: str, *, channel: Any = alt.X, padding: int = 8) -> Any:
    """A logarithmic axis with labels at 1, 2 and 5 of each decade; at every digit if it is shorter than a decade."""
    domain = f"domain('{'x' if channel is alt.X else 'y'}')"
    short = f"{domain}[1] < 10 * {domain}[0]"
    digit = "datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9))"
    labeled = f"{short} || indexof([1, 2, 5], round({digit})) >= 0"
    axis = alt.Axis(
        labelExpr=f"{labeled} ? format(datum.value, ',~g') : ''",
        labelOverlap="greedy",
        tickCount=8,
    )
    return channel(f"{field}:Q", title=title, scale=_log_scale(padding), axis=axis)


def speedup_color(legend: bool) -> alt.Color:
    """The color of a speed-up, from the field ``doublings``."""
    scale = alt.Scale(domain=DOUBLINGS, range=SLOWER_TO_FASTER, clamp=True, interpolate="rgb")
    shown = alt.Legend(
        title=None,
        orient="top",
        direction="horizontal",
        gradientLength=200,
        gradientThickness=9,
        values=[-1, 0, 1],
        labelExpr="datum.value < 0 ? '0.5x, slower' : datum.value > 0 ? '2x, faster' : '1x'",
    )
    return alt.Color("doublings:Q", scale=scale, legend=shown if legend else None)


def provider_legend() -> alt.Legend:
    """The providers of the parameter ``shown``, above the chart, in as many columns as the parameter ``columns``."""
    return alt.Legend(
        title=None,
        orient="top",
        columns={"expr": "columns"},
        symbolSize=80,
        symbolOpacity=1,
        values={"expr": "shown"},
    )


def label_beside(bars: alt.Chart, text: str) -> alt.Chart:
    """A label for each bar, to the right of the chart. text: a Vega expression."""
    return (
        bars.transform_calculate(label=text)
        .mark_text(align="left", dx=6, fontSize=11)
        .encode(x=alt.value({"expr": "width"}), text="label:N")
    )


def tips(*fields: str) -> list[alt.Tooltip]:
    """A tooltip of these fields; those without a value are left out when it is shown."""
    titles = {"speedup_text": "speed-up", "limits": "share", "host": "host time"}
    return [alt.Tooltip(f"{field}:N", title=titles.get(field, field)) for field in fields]


def _log_scale(padding: int = 8) -> alt.Scale:
    return alt.Scale(type="log", nice=False, padding=padding)
