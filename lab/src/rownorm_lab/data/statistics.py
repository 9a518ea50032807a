"""Summaries of repeated measurements, ratios with intervals, and verdicts.

All of them use medians, which a few slow rounds (another process, a changed clock) do not move. Nothing is random: the
same measurements always give the same verdict. The interval of a paired ratio is a percentile bootstrap interval; the
distribution of a resampled median is computed exactly. The interval of an unpaired ratio is that of the rank sum test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import NormalDist, median
from typing import Literal, NamedTuple

Verdict = Literal["faster", "same", "slower", "unclear"]
MARGIN = 0.03  # times that differ by less count as the same
CONFIDENCE = 0.95
EXACT = 10_000  # pairs of measurements up to which the rank sum test is exact; beyond, its normal approximation


class Summary(NamedTuple):
    """Median and percentiles of some measurements; ``spread`` is ``(p80 - p20) / median``."""

    median: float
    p20: float
    p80: float
    spread: float
    n: int


class Ratio(NamedTuple):
    """A ratio of times, and its interval; 95% unless another confidence was asked for."""

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


def unpaired_ratio(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """The median of all ``a[i] / b[j]``, for independent measurements.

    The interval holds the factors that the rank sum test (Mann and Whitney) does not reject. Its confidence is exact
    for rounds that are independent of each other, whatever their distribution. If there are too few of them for that
    confidence (``enough_rounds``), it is the range of all ratios.
    """
    _positive("a", a)
    _positive("b", b)
    ratios = sorted(x / y for x in a for y in b)
    outside = max(0, _outside(len(a), len(b), confidence))
    return Ratio(median(ratios), ratios[outside], ratios[-1 - outside])


def ratio_of_times(a: Sequence[float], b: Sequence[float], *, paired: bool) -> Ratio:
    """The median of a over the median of b: the ratio that the times give which are shown beside it.

    The interval is that of the ratios, paired by round or of all pairs. Where rounds were disturbed, the two can
    disagree. The interval then reaches from one to the other, so that a verdict needs both.
    """
    found = (paired_ratio if paired else unpaired_ratio)(a, b)
    shown = median(a) / median(b)
    return Ratio(shown, min(found.low, shown), max(found.high, shown))


def enough_rounds(a: int, b: int, confidence: float = CONFIDENCE) -> bool:
    """Whether a and b independent measurements can have an interval of that confidence."""
    return _outside(a, b, confidence) >= 0


def verdict(ratio: Ratio, margin: float = MARGIN, noise: float = 0.0) -> Verdict:
    """The verdict on a, given the ratio of times ``a / b``.

    faster or slower: the whole interval is on one side of 1, and the ratio itself is beyond the margin and the noise.
    same: the whole interval is within the margin, and so is half of the noise. Otherwise unclear. noise: the largest
    difference without a cause in any of the cases, which intervals do not cover; half of it is usual in a single case.
    The margin and the noise are factors: from ``1 / (1 + margin)`` to ``1 + margin``.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"verdict: margin must be 0 or more; got {margin!r}")
    upper, least = 1 + margin, 1 + max(margin, noise)
    if ratio.low >= 1 / upper and ratio.high <= upper and noise / 2 <= margin:
        return "same"
    if ratio.high < 1 and ratio.ratio < 1 / least:
        return "faster"
    if ratio.low > 1 and ratio.ratio > least:
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


@cache
def _outside(a: int, b: int, confidence: float) -> int:
    """How many ratios of a and b measurements are outside the interval, at each end; -1 if there is no interval."""
    tail = (1 - confidence) / 2
    if a * b > EXACT:
        deviation = math.sqrt(a * b * (a + b + 1) / 12)
        return max(-1, math.floor(a * b / 2 + NormalDist().inv_cdf(tail) * deviation))
    most, seen = tail * math.comb(a + b, a), 0
    for rank_sum, ways in enumerate(_rank_sums(a, b)):
        seen += ways
        if seen > most:
            return rank_sum - 1
    return -1


def _rank_sums(a: int, b: int) -> list[int]:
    """In how many orders of a and b values exactly 0, 1, 2, ... pairs have the first value below the second.

    They are the coefficients of the Gaussian binomial: the product of (1 - x^(b+i)) / (1 - x^i) over i = 1 to a.
    """
    ways = [1] + [0] * (a * b)
    for i in range(1, a + 1):
        for u in range(a * b, b + i - 1, -1):
            ways[u] -= ways[u - b - i]
        for u in range(i, a * b + 1):
            ways[u] += ways[u - i]
    return ways


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
