"""Summaries of repeated measurements, ratios with intervals, and verdicts.

Everything is about medians: a few slow rounds (another process, a clock that changed) do not move them. An interval is
a 95 % percentile bootstrap with a fixed seed, so that the same figures always give the same words.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal, NamedTuple

Verdict = Literal["faster", "same", "slower", "unclear"]
MARGIN = 0.03  # two times closer than this are the same to a user


class Summary(NamedTuple):
    """The middle of some measurements, and how far they spread: ``(p80 - p20) / median``."""

    median: float
    p20: float
    p80: float
    spread: float
    n: int


class Ratio(NamedTuple):
    """A ratio of times, and the interval in which 95 % of resampled experiments put it."""

    ratio: float
    low: float
    high: float


def summarize(seconds: Sequence[float]) -> Summary:
    """Median and percentiles 20 and 80 of at least one positive figure."""
    ordered = sorted(_positive("seconds", seconds))
    middle = median(ordered)
    p20, p80 = quantile(ordered, 0.2), quantile(ordered, 0.8)
    return Summary(middle, p20, p80, (p80 - p20) / middle, len(ordered))


def paired_ratio(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, draws: int = 2000
) -> Ratio:
    """The median of ``a[i] / b[i]``, for measurements of which the i-th two belong to one round.

    What disturbs a whole round (clocks, temperature, neighbours) is in both and cancels.
    """
    if len(a) != len(b):
        raise ValueError(f"paired_ratio: a and b must be of one length; got {len(a)} and {len(b)}")
    ratios = [x / y for x, y in zip(_positive("a", a), _positive("b", b), strict=True)]
    chance = random.Random(seed)
    return _interval(median(ratios), lambda: median(_resampled(ratios, chance)), draws)


def unpaired_ratio(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, draws: int = 2000
) -> Ratio:
    """``median(a) / median(b)``, for measurements that have nothing to do with each other."""
    a, b = _positive("a", a), _positive("b", b)
    chance = random.Random(seed)

    def draw() -> float:
        return median(_resampled(a, chance)) / median(_resampled(b, chance))

    return _interval(median(a) / median(b), draw, draws)


def verdict(ratio: Ratio, margin: float = MARGIN) -> Verdict:
    """What a ratio of times ``a / b`` says of a: faster or slower only if the whole interval is beyond 1, the ratio
    itself beyond the margin; same if the whole interval lies within the margin; else unclear.

    The margin is the same factor both ways: ``1 + margin`` and its inverse.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"verdict: margin must be 0 or more; got {margin!r}")
    upper = 1 + margin
    lower = 1 / upper
    if ratio.low >= lower and ratio.high <= upper:
        return "same"
    if ratio.high < 1 and ratio.ratio < lower:
        return "faster"
    if ratio.low > 1 and ratio.ratio > upper:
        return "slower"
    return "unclear"


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted values, linear between neighbours."""
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _interval(ratio: float, draw: Callable[[], float], draws: int) -> Ratio:
    drawn = sorted(draw() for _ in range(draws))
    return Ratio(ratio, quantile(drawn, 0.025), quantile(drawn, 0.975))


def _resampled(values: Sequence[float], chance: random.Random) -> list[float]:
    return chance.choices(values, k=len(values))


def _positive(name: str, values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise ValueError(f"{name} must hold at least one measurement; got none")
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite; got {value!r}")
    return values
