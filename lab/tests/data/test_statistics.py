"""Statistics on made-up measurements whose answers are known."""

import itertools
import math
import random
from statistics import median

import pytest

from rownorm_lab.data.statistics import (
    Ratio,
    _middle_places,
    _outside,
    _rank_sums,
    enough_rounds,
    paired_ratio,
    quantile,
    summarize,
    unpaired_ratio,
    verdict,
)


def test_summary_of_known_values():
    summary = summarize([5.0, 1.0, 4.0, 2.0, 3.0, 6.0])
    assert summary.median == 3.5
    assert (summary.p20, summary.p80) == (2.0, 5.0)
    assert summary.spread == pytest.approx(3 / 3.5)
    assert summary.n == 6


def test_summary_of_one_value_and_of_ties():
    assert summarize([2.0]) == (2.0, 2.0, 2.0, 0.0, 1)
    assert summarize([2.0] * 9) == (2.0, 2.0, 2.0, 0.0, 9)


def test_outliers_do_not_move_the_summary():
    calm = summarize([1.0] * 13)
    assert summarize([1.0] * 13 + [50.0, 90.0])[:4] == calm[:4]


@pytest.mark.parametrize("bad", [[], [0.0], [1.0, -1.0], [float("nan")], [float("inf")]])
def test_values_that_are_not_times(bad):
    with pytest.raises(ValueError, match=r"at least one|positive and finite"):
        summarize(bad)
    with pytest.raises(ValueError, match="a must"):
        unpaired_ratio(bad, [1.0])
    with pytest.raises(ValueError, match=r"b must|one length"):
        paired_ratio([1.0] * len(bad) or [1.0], bad)


def test_pairs_must_match():
    with pytest.raises(ValueError, match="got 2 and 3"):
        paired_ratio([1.0, 2.0], [1.0, 2.0, 3.0])


def test_quantile():
    assert [quantile([1.0, 2.0, 4.0], q) for q in (0, 0.25, 0.5, 1)] == [1.0, 1.5, 2.0, 4.0]


def test_ratio_of_one_value_and_of_ties():
    assert paired_ratio([3.0], [2.0]) == (1.5, 1.5, 1.5)
    assert paired_ratio([3.0] * 5, [2.0] * 5) == (1.5, 1.5, 1.5)
    assert unpaired_ratio([3.0] * 5, [2.0] * 7) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_the_interval_is_that_of_every_possible_experiment(n):
    """All n ** n ways of drawing n rounds again, counted one by one."""
    chance = random.Random(n)
    a, b = ([chance.uniform(1, 2) for _ in range(n)] for _ in range(2))
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    medians = sorted(median(drawn) for drawn in itertools.product(ratios, repeat=n))

    def percentile(q):
        return medians[math.ceil(q * len(medians) - 1e-9) - 1]

    expected = (median(ratios), percentile(0.025), percentile(0.975))
    assert paired_ratio(a, b) == pytest.approx(expected)


def test_the_rank_sums_are_those_of_every_possible_order():
    counted = [0] * (3 * 4 + 1)
    for first in itertools.combinations(range(7), 3):
        second = [place for place in range(7) if place not in first]
        counted[sum(a < b for a in first for b in second)] += 1
    assert _rank_sums(3, 4) == counted


@pytest.mark.parametrize(
    ("a", "b", "confidence", "outside"),
    [(10, 10, 0.95, 23), (8, 12, 0.95, 22), (5, 5, 0.99, 0), (3, 3, 0.95, -1), (1, 1, 0.95, -1)],
)
def test_the_interval_has_the_critical_values_of_the_rank_sum_test(a, b, confidence, outside):
    """From published tables of the test."""
    assert _outside(a, b, confidence) == outside
    assert enough_rounds(a, b, confidence) == (outside >= 0)


def test_the_rank_sum_test_of_many_rounds_is_approximated():
    exact, close = _outside(100, 100, 0.95), _outside(100, 101, 0.95)
    assert exact < close < exact + 60


def test_an_unpaired_interval_without_enough_rounds_is_the_range():
    assert unpaired_ratio([2.0, 4.0], [1.0]) == (3.0, 2.0, 4.0)


@pytest.mark.parametrize("n", [15, 16, 200, 1101])
def test_the_probabilities_of_resampled_medians_sum_to_one(n):
    places = _middle_places(n)
    assert sum(p for _, _, p in places) == pytest.approx(1, abs=1e-4)
    middle = sum((i + j) / 2 * p for i, j, p in places)
    assert middle == pytest.approx((n - 1) / 2, abs=0.01)


def drifting(chance, rounds, ratio, noise=0.01):
    """Two providers that slow down together by up to 30%, and a little each on its own."""
    common = [chance.uniform(1.0, 1.3) for _ in range(rounds)]
    a = [ratio * c * (1 + chance.gauss(0, noise)) for c in common]
    b = [c * (1 + chance.gauss(0, noise)) for c in common]
    return a, b


def test_pairing_removes_the_drift():
    a, b = drifting(random.Random(3), 15, 0.95)
    paired = paired_ratio(a, b)
    assert paired.low < 0.95 < paired.high
    assert paired.ratio == pytest.approx(0.95, abs=0.01)
    assert verdict(paired) == "faster"
    assert verdict(unpaired_ratio(a, b)) == "unclear"


@pytest.mark.parametrize("true", [0.95, 1.0])
def test_the_paired_interval_covers_the_truth_as_often_as_it_says(true):
    chance = random.Random(11)
    hits = 0
    for _ in range(200):
        ratio = paired_ratio(*drifting(chance, 15, true))
        hits += ratio.low <= true <= ratio.high
    assert 0.90 <= hits / 200 <= 0.99


def test_the_unpaired_interval_covers_the_truth_as_often_as_it_says():
    chance = random.Random(12)
    hits = 0
    for _ in range(200):
        a = [1.1 * chance.lognormvariate(0, 0.05) for _ in range(15)]
        b = [chance.lognormvariate(0, 0.05) for _ in range(20)]
        ratio = unpaired_ratio(a, b)
        hits += ratio.low <= 1.1 <= ratio.high
    assert 0.90 <= hits / 200 <= 0.99


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ((1.0, 1.0, 1.0), "same"),
        ((1.0, 0.99, 1.01), "same"),
        ((1.02, 1.01, 1.03), "same"),  # surely slower, by less than anyone minds
        ((0.98, 1 / 1.03, 0.99), "same"),
        ((0.90, 0.89, 0.91), "faster"),
        ((0.95, 0.90, 0.99), "faster"),
        ((0.95, 0.90, 1.00), "unclear"),
        ((0.98, 0.96, 0.99), "unclear"),  # faster or the same
        ((1.10, 1.09, 1.11), "slower"),
        ((1.05, 1.001, 1.2), "slower"),
        ((1.05, 1.0, 1.2), "unclear"),
        ((1.02, 1.01, 1.04), "unclear"),  # slower or the same
        ((1.0, 0.8, 1.2), "unclear"),
    ],
)
def test_verdicts_at_the_margins(ratio, expected):
    assert verdict(Ratio(*ratio)) == expected
    swapped = {"faster": "slower", "slower": "faster"}.get(expected, expected)
    middle, low, high = ratio
    assert verdict(Ratio(1 / middle, 1 / high, 1 / low)) == swapped


@pytest.mark.parametrize(
    ("ratio", "noise", "expected"),
    [
        ((1.10, 1.09, 1.11), 0.09, "slower"),
        ((1.10, 1.09, 1.11), 0.11, "unclear"),
        ((0.90, 0.89, 0.91), 0.12, "unclear"),
        ((1.01, 1.00, 1.02), 0.06, "same"),
        ((1.01, 1.00, 1.02), 0.07, "unclear"),  # a difference beyond the margin would not be seen
    ],
)
def test_verdicts_with_noise(ratio, noise, expected):
    assert verdict(Ratio(*ratio), noise=noise) == expected


def test_verdicts_with_another_margin():
    assert verdict(Ratio(1.04, 1.03, 1.05), margin=0.1) == "same"
    assert verdict(Ratio(1.001, 1.0005, 1.002), margin=0) == "slower"
    assert verdict(Ratio(1.0, 1.0, 1.0), margin=0) == "same"
    with pytest.raises(ValueError, match="margin"):
        verdict(Ratio(1.0, 1.0, 1.0), margin=-0.1)
