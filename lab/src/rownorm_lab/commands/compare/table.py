"""What ``rownorm compare`` prints: a line for each case, then the counts and what they are based on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...data.compare import Comparison, Outcome, rounds_needed
from ...data.records import OURS
from ...data.tables import columns, shape_label, wrapped
from ...data.texts import if_known, percent


def compare_table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A line for each case that both sets have, under a heading for each kind of case and provider."""
    if not comparisons:
        return
    named = {one.provider for one in comparisons} != {OURS}
    header, *lines = columns(
        ["", "new / base", "interval", "noise", "verdict"],
        [
            [
                shape_label(one.case),
                f"{one.ratio.ratio:.3f}",
                interval(one),
                if_known(one.noise, noise_text),
                one.verdict + (" ?" if one.suspect else ""),
            ]
            for one in comparisons
        ],
    )
    yield header
    heading = ""
    for one, line in zip(comparisons, lines, strict=True):
        kind = f"{one.case.kind}{f', {one.provider}' if named else ''}"
        if kind != heading:
            heading = kind
            yield heading
        yield line


def noise_text(noise: float) -> str:
    """``±2.3%``."""
    return f"±{percent(noise)}" if noise < 1 else "over ±100%"


def interval(one: Comparison) -> str:
    """The interval of the ratio, or that there is none."""
    if not one.enough_rounds:
        return "too few rounds"
    return f"{one.ratio.low:.3f} to {one.ratio.high:.3f}"


def remarks(outcome: Outcome, margin: float) -> Iterator[str]:
    """What was compared, with which noise, and how many verdicts there are of each kind."""
    comparisons = outcome.comparisons
    if any(one.suspect for one in comparisons):
        yield "? suspect: the records and the report give the reasons; --fail-on-suspect counts them"
    if not all(one.enough_rounds for one in comparisons):
        needed = rounds_needed(len(comparisons))
        cases = "1 case needs" if len(comparisons) == 1 else f"{len(comparisons)} cases need"
        yield f"{cases} at least {needed} rounds in both sets for an interval."
    if outcome.control is None:
        yield "No control: the ceiling was not measured in both sets under the same conditions."
        yield "The verdicts rest on the rounds alone; noise between runs may look like a change."
    else:
        yield f"noise: how far {outcome.control.provider} changed, whose code did not change"
    if len(comparisons) > 1:
        yield f"The confidence is 95% for all {len(comparisons)} intervals together."
    yield ""
    yield from wrapped(f"{counts(comparisons)} (by {quantity(comparisons)}, margin {margin:.0%})")


def counts(comparisons: Sequence[Comparison]) -> str:
    """How many are faster, the same, slower and unclear."""
    counted = Counter(one.verdict for one in comparisons)
    return ", ".join(f"{counted[name]} {name}" for name in ("faster", "same", "slower", "unclear"))


def quantity(comparisons: Sequence[Comparison]) -> str:
    """Which quantity was compared, in words."""
    relative = sum(one.by_ceiling for one in comparisons)
    if relative == 0:
        return "times"
    others = len(comparisons) - relative
    return "times relative to the ceiling of their round" + (
        f", {others} by times" if others else ""
    )
