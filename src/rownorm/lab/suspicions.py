"""Reasons to doubt a measurement, in words for its record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .cases import Case
from .records import Clocks, Method, Timer
from .statistics import summarize

WIDE_SPREAD = 0.20  # between the 20th and the 80th percentile, of the median
CLOCK_DRIFT = 0.05
SHORTEST_ROUND: dict[Timer, float] = {"cuda_graph": 1e-4, "device_events": 5e-6, "cpu_clock": 1e-4}


def suspicions(
    case: Case,
    method: Method,
    seconds: Sequence[float],
    clocks: Sequence[Clocks],
    *,
    peak: float | None,
    interpreted: bool = False,
) -> list[str]:
    """What a reader should know before believing these seconds; empty if nothing is odd."""
    found = []
    median, _, _, spread, rounds = summarize(seconds)
    if peak and case.compulsory_bytes / median > peak:
        found.append(f"faster than the peak: {case.compulsory_bytes / median / peak:.0%} of it")
    if rounds >= 5 and spread > WIDE_SPREAD:
        found.append(f"spread of {spread:.0%} between the 20th and the 80th percentile")
    # Between events every call is timed alone.
    timed = median * (1 if method.timer == "device_events" else method.calls)
    if timed < SHORTEST_ROUND[method.timer]:
        found.append(f"{timed * 1e6:.1f} µs were timed at once: near what the timer can resolve")
    if reasons := throttling(clocks):
        found.append(f"the device throttled: {', '.join(reasons)}")
    speeds = [each.sm_mhz for each in clocks if each.sm_mhz]
    if speeds and max(speeds) - min(speeds) > CLOCK_DRIFT * max(speeds):
        found.append(f"the clock moved between {min(speeds)} and {max(speeds)} MHz")
    if interpreted:
        found.append("the kernels ran in Triton's interpreter, which says nothing of their speed")
    return found


def throttling(clocks: Sequence[Clocks]) -> list[str]:
    """Every reason for throttling that was seen."""
    return sorted({reason for each in clocks for reason in each.throttled})


def summary(clocks: Sequence[Clocks]) -> Clocks | None:
    """One value for a case: the median of each figure."""
    if not clocks:
        return None

    def middle(name: str) -> Any:
        known = [value for each in clocks if (value := getattr(each, name)) is not None]
        return statistics.median_low(known) if known else None

    names = ("sm_mhz", "memory_mhz", "temperature_c", "power_w")
    return Clocks(**{name: middle(name) for name in names}, throttled=throttling(clocks))
