"""The default baseline of the page: in each case, the fastest provider that is neither the subject nor the ceiling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from ..data.measurements import Measurement, Results, cases_of, fastest_other
from ..data.statistics import Ratio

FASTEST = "fastest other"  # in the place of a provider's name
LEVEL = 0.01  # speeds that differ by less are level
NOISY = 0.05  # an interval that includes 1 and is wider than this decides nothing
FEWEST_ROUNDS = 6  # with fewer, the median has no 95% interval
LEVEL_TEXT = (
    f"Level: the speeds differ by less than {LEVEL:.0%}, or the 95% interval of the speed-up includes 1. "
    f"Too noisy: that interval is wider than {NOISY:.0%}, or there are 2 to {FEWEST_ROUNDS - 1} rounds. A single time "
    "has no interval and is compared as it is."
)
Standing = Literal["fastest", "level", "slower", "unclear"]


class Standings(NamedTuple):
    """The number of cases with each standing against the fastest other provider."""

    fastest: int = 0
    level: int = 0
    slower: int = 0
    unclear: int = 0

    @property
    def cases(self) -> int:
        return sum(self)

    @property
    def fastest_or_level(self) -> int:
        return self.fastest + self.level


def over_fastest(row: Measurement) -> Ratio | None:
    """The speed-up over the fastest other provider."""
    other = fastest_other(row)
    return row.speedups[other] if other else None


def standing_of(speedup: Ratio, rounds: int) -> Standing:
    """What a speed-up over the fastest other provider means; ``LEVEL_TEXT`` gives the rule in words."""
    undecided = rounds > 1 and speedup.low <= 1 <= speedup.high
    if 1 < rounds < FEWEST_ROUNDS or (undecided and speedup.high > (1 + NOISY) * speedup.low):
        return "unclear"
    if undecided or 1 / (1 + LEVEL) < speedup.ratio < 1 + LEVEL:
        return "level"
    return "fastest" if speedup.ratio > 1 else "slower"


def standings(rows: Iterable[Measurement]) -> Standings:
    """The standings of one provider's rows. Cases without another provider do not count."""
    found: Counter[Standing] = Counter(
        standing_of(speedup, row.time.n)
        for row in rows
        if row.time and (speedup := over_fastest(row))
    )
    return Standings(found["fastest"], found["level"], found["slower"], found["unclear"])


def with_baselines(results: Results) -> Iterator[tuple[Measurement, str | None]]:
    """Every measured row with the fastest provider of its case that is neither the subject nor the ceiling."""
    for of_case in cases_of(results.measured):
        subject = of_case.get(results.subject or "")
        baseline = fastest_other(subject) if subject else None
        for row in of_case.values():
            yield row, baseline
