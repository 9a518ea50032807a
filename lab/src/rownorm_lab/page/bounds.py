"""What limits a case: memory bandwidth, the launch, latency, or compute.

A case that is close to its own ceiling is not bound by memory for that reason alone: at a small size the ceiling spends
most of its time on the launch too. So the time is split into three parts, with the best ceiling of the device:

    moving    its bytes over the bandwidth of the best ceiling
    launch    the time of the ceiling of the same case, less moving
    latency   the time of the case, less that of its ceiling: dependent steps, synchronization, too few programs

A CPU launches nothing: there, what is not moving is overhead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

from ..data import texts
from ..data.measurements import Measurement, Results
from ..data.records import CEILING
from .limits import peak_flops

Limit = Literal[
    "memory",
    "mostly memory",
    "launch",
    "latency",
    "launch or latency",
    "overhead",
    "compute",
    "unknown",
]
LIMITS: tuple[Limit, ...] = get_args(Limit)  # in the order of the table
MEMORY = 0.8  # of the time is moving: memory is the limit
MOSTLY_MEMORY = 0.6
# Of the peak: the best ceiling counts as at least this much, even if only small cases were measured.
LEAST_OF_PEAK = 0.85


class Bound(NamedTuple):
    """What limits a case, and the figures that show it."""

    limit: Limit
    why: str


class Bounds:
    """The limits of one device, from its peaks and its measured ceilings."""

    def __init__(self, results: Results) -> None:
        bandwidth, flops = results.peak or results.ceiling, peak_flops(results)
        self.ridge = flops / bandwidth if flops and bandwidth else None  # flop per byte
        self._peak = results.peak
        self._on_gpu = results.kind != "cpu"
        measured = sorted(
            (row.record.case.compulsory_bytes, row.bandwidth)
            for row in results.of(CEILING)
            if row.bandwidth
        )
        self._sizes = [size for size, _ in measured]
        # The best of each size and of all larger ones. A smaller size may fit a cache and be faster.
        self._best = list(accumulate((rate for _, rate in reversed(measured)), max))[::-1]

    def best_ceiling(self, moved: int) -> float | None:
        """The highest bandwidth of the ceiling on at least ``moved`` bytes; at least 85% of a known peak.

        If no ceiling has that many bytes, the largest one counts.
        """
        at = bisect_left(self._sizes, moved)
        found = self._best[at : at + 1] or self._best[-1:]
        if self._peak:
            found = [*found, LEAST_OF_PEAK * self._peak]
        return max(found, default=None)

    def of(self, row: Measurement) -> Bound:
        """What limits a measured row."""
        case = row.record.case
        if self.ridge and case.intensity >= self.ridge:
            why = f"{case.intensity:.3g} flop/byte; the ridge point is {self.ridge:.3g}"
            return Bound("compute", why)
        best = self.best_ceiling(case.compulsory_bytes)
        if not best or not row.time:
            return Bound("unknown", "neither the ceiling nor the peak is known")
        time, moving = row.time.median, case.compulsory_bytes / best
        ceiling = row.of_ceiling and time * row.of_ceiling
        limit = _limit(time, moving, ceiling)
        if not self._on_gpu and limit not in ("memory", "mostly memory"):
            rest = texts.duration(time - moving)
            why = f"{texts.duration(time)}: moving {texts.duration(moving)}, overhead {rest}"
            return Bound("overhead", why)
        if limit == "memory":
            rate = texts.gigabytes_per_second(case.compulsory_bytes / time)
            return Bound(limit, f"{rate}, {texts.percent(moving / time)} of the best ceiling")
        return Bound(limit, _parts(time, moving, ceiling))


def by_limit(bounds: Bounds, rows: Sequence[Measurement]) -> dict[Limit, list[Measurement]]:
    """The rows of each limit, from the fewest bytes to the most; limits without a row are left out."""
    found: dict[Limit, list[Measurement]] = {limit: [] for limit in LIMITS}
    for row in sorted(rows, key=lambda row: row.record.case.compulsory_bytes):
        found[bounds.of(row).limit].append(row)
    return {limit: of_limit for limit, of_limit in found.items() if of_limit}


def _limit(time: float, moving: float, ceiling: float | None) -> Limit:
    """What takes the time, in seconds; ceiling: the time of the ceiling of the same case, if it was measured."""
    if moving >= MEMORY * time:
        return "memory"
    if moving >= MOSTLY_MEMORY * time:
        return "mostly memory"
    if ceiling is None:
        return "launch or latency"
    return "launch" if ceiling - moving >= time - ceiling else "latency"


def _parts(time: float, moving: float, ceiling: float | None) -> str:
    """``3.94 µs: moving 1.90 µs, launch 1.98 µs, latency 60.0 ns``."""
    parts = {"moving": moving}
    if ceiling is not None:
        # The case may be faster than the ceiling.
        parts |= {"launch": min(ceiling, time) - moving, "latency": time - ceiling}
    listed = ", ".join(
        f"{name} {texts.duration(part)}" for name, part in parts.items() if part > 0.005 * time
    )
    return f"{texts.duration(time)}: {listed}" if listed else texts.duration(time)
