"""Suspect measurements: reasons to distrust a time, in words for its record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ..data.case import Case
from ..data.records import Clocks, Method, Timer
from ..data.statistics import summarize

WIDE_SPREAD = 0.20  # from the 20th to the 80th percentile, relative to the median
CLOCK_DRIFT = 0.05
SHORTEST_ROUND: dict[Timer, float] = {"cuda_graph": 1e-4, "device_events": 5e-6, "cpu_clock": 1e-4}


def suspect_reasons(
    case: Case,
    method: Method,
    seconds: Sequence[float],
    clocks: Sequence[Clocks],
    *,
    peak: float | None,
    interpreted: bool = False,
) -> list[str]:
    """The reasons to distrust these times; empty if there are none."""
    found = []
    median, _, _, spread, rounds = summarize(seconds)
    if peak and case.compulsory_bytes / median > peak:
        found.append(f"faster than the peak: {case.compulsory_bytes / median / peak:.0%} of it")
    if rounds >= 5 and spread > WIDE_SPREAD:
        found.append(f"spread of {spread:.0%} between the 20th and the 80th percentile")
    # With events, each call is timed on its own.
    timed = median * (1 if method.timer == "device_events" else method.calls)
    if timed < SHORTEST_ROUND[method.timer]:
        found.append(f"{timed * 1e6:.1f} µs were timed at once: near the resolution of the timer")
    if reasons := throttling(clocks):
        found.append(f"the device throttled: {', '.join(reasons)}")
    speeds = [each.sm_mhz for each in clocks if each.sm_mhz]
    if speeds and max(speeds) - min(speeds) > CLOCK_DRIFT * max(speeds):
        found.append(f"the clock moved between {min(speeds)} and {max(speeds)} MHz")
    if interpreted:
        found.append("the kernels ran in Triton's interpreter, so this is not their speed")
    return found


def throttling(clocks: Sequence[Clocks]) -> list[str]:
    """Every reason for throttling in the readings."""
    return sorted({reason for each in clocks for reason in each.throttled})


def typical_clocks(clocks: Sequence[Clocks]) -> Clocks | None:
    """The median of each reading, over the rounds of a case."""
    if not clocks:
        return None

    def middle(name: str) -> Any:
        known = [value for each in clocks if (value := getattr(each, name)) is not None]
        return statistics.median_low(known) if known else None

    names = ("sm_mhz", "memory_mhz", "temperature_c", "power_w")
    return Clocks(**{name: middle(name) for name in names}, throttled=throttling(clocks))
