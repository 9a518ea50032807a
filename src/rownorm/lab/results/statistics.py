"""Summaries of repeated measurements, ratios with intervals, and verdicts.

All of them use medians, which a few slow rounds (another process, a changed clock) do not move. Intervals are 95%
percentile bootstrap intervals. The distribution of a resampled median is computed exactly, so nothing is random: the
same measurements always give the same verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import median
from typing import Literal, NamedTuple

Verdict = Literal["faster", "same", "slower", "unclear"]
MARGIN = 0.03  # times that differ by less count as the same


class Summary(NamedTuple):
    """Median and percentiles of some measurements; ``spread`` is ``(p80 - p20) / median``."""

    median: float
    p20: float
    p80: float
    spread: float
    n: int


class Ratio(NamedTuple):
    """A ratio of times, and its 95% bootstrap interval."""

    ratio: float
    low: float
    high: float


def summarize(seconds: Sequence[float]) -> Summary:
    """Median, 20th and 80th percentile of one or more positive values."""
    ordered = sorted(_positive("seconds", seconds))
    middle = median(ordered)
    p20, p80 = quantile(ordered, 0.2), quantile(ordered, 0.8)
    return Summary(middle, p20, p80, (p80 - p20) / middle, len(ordered))


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The median of ``a[i] / b[i]``, for measurements that share their rounds.

    Whatever disturbs a whole round (clocks, temperature, other processes) affects both and cancels.
    """
    if len(a) != len(b):
        raise ValueError(
            f"paired_ratio: a and b must have the same length; got {len(a)} and {len(b)}"
        )
    ratios = [x / y for x, y in zip(_positive("a", a), _positive("b", b), strict=True)]
    return _interval(median(ratios), _resampled_medians(ratios))


def unpaired_ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """``median(a) / median(b)``, for independent measurements."""
    of_a, of_b = _resampled_medians(_positive("a", a)), _resampled_medians(_positive("b", b))
    ratios = ((x / y, p * q) for x, p in of_a for y, q in of_b)
    return _interval(median(a) / median(b), ratios)


def verdict(ratio: Ratio, margin: float = MARGIN) -> Verdict:
    """The verdict on a, given the ratio of times ``a / b``.

    faster or slower: the whole interval is on one side of 1, and the ratio itself is beyond the margin. same: the
    whole interval is within the margin. Otherwise unclear. The margin is a factor: from ``1 / (1 + margin)`` to ``1 +
    margin``.
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
    """The q-quantile of sorted values, interpolated linearly."""
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _interval(ratio: float, weighted: Iterable[tuple[float, float]]) -> Ratio:
    """The ratio with the 2.5th and 97.5th percentile of (value, probability) pairs."""
    ordered = sorted(weighted)
    reached, low = 0.0, ordered[0][0]
    for value, probability in ordered:
        if reached < 0.025:
            low = value
        reached += probability
        if reached >= 0.975:
            return Ratio(ratio, low, value)
    return Ratio(ratio, low, ordered[-1][0])


def _resampled_medians(values: Sequence[float]) -> list[tuple[float, float]]:
    """(median, probability) for every median of ``values`` resampled with replacement."""
    ordered = sorted(values)
    return [((ordered[i] + ordered[j]) / 2, p) for i, j, p in _middle_places(len(ordered))]


@cache
def _middle_places(n: int) -> list[tuple[int, int, float]]:
    """(i, j, probability): the two middle values of n draws from n ordered values are the i-th and the j-th, from 0.

    For odd n there is one middle value, so i equals j. Probabilities below 1e-9 are left out.
    """
    half = (n + 1) // 2
    reached = [_at_least(half, n, i / n) for i in range(n + 1)]  # P(half of the draws are below i)
    places = []
    for i in range(n):
        left = reached[i + 1] - reached[i]  # P(the lower middle is the i-th)
        for j in range(i + 1, n) if n % 2 == 0 else ():
            # Half of the draws are at most the i-th and include it; the other half are at least the j-th and include
            # it.
            lower = _power((i + 1) / n, i / n, half)
            upper = _power((n - j) / n, (n - j - 1) / n, half)
            both = math.exp(_log_choices(n, half) + lower + upper)
            places.append((i, j, both))
            left -= both
        places.append((i, i, left))
    return [place for place in places if place[2] > 1e-9]


def _at_least(k: int, n: int, p: float) -> float:
    """The probability of at least k successes in n trials."""
    if p in (0.0, 1.0):
        return p
    logs = (
        _log_choices(n, at) + at * math.log(p) + (n - at) * math.log1p(-p) for at in range(k, n + 1)
    )
    return sum(map(math.exp, logs))


def _log_choices(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _power(a: float, b: float, exponent: int) -> float:
    """The logarithm of ``a ** exponent - b ** exponent``, which itself may underflow."""
    return exponent * math.log(a) + math.log1p(-((b / a) ** exponent))


def _positive(name: str, values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise ValueError(f"{name} must have at least one measurement; got none")
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite; got {value!r}")
    return values
