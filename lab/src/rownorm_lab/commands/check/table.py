"""The table that ``rownorm check`` prints."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from ...data.tables import wrapped
from ...data.texts import if_known, percent, significant
from ...measure.check import CheckResult

HEADER = (
    f"  {'':6} {'':9} {'max error':>10} {'mean error':>11} {'error':>8} {'accepted':>9}",
    f"  {'dtype':6} {'data':9} {'':10} {'':11} {'(ulp)':>8} {'(ulp)':>9}   result",
)
# Ulp: a value that is correctly rounded is off by at most 0.5, here to three digits.
ROUNDED = 0.501
LEGEND = (
    f"correctly rounded: off by at most {ROUNDED} ulp; half an ulp is the least possible.",
    "Beyond 1 ulp: the element closest to its limit, its error, and the error that is accepted there.",
)
STORED_H = (
    "The backward of add_ operations is close to its limit by nature: the limit is the rounding of the",
    "stored h, which no backward can undo.",
)


def check_table(results: Iterable[CheckResult], brief: bool = False) -> Iterator[str]:
    """Lines as the results come, under a heading for each provider, operation, form and pass.

    brief: only the worst result of each dtype. A reason why something was not computed is printed once.
    """
    yield from HEADER
    printed: set[str] = set()
    blocks = itertools.groupby(results, lambda one: (one.provider, one.norm, one.direction))
    for (provider, norm, direction), block in blocks:
        heading = f"{provider} {norm} {direction}"
        for result in worst_of_each_dtype(block) if brief else block:
            if result.max_error is None and result.ok:
                name = provider if result.status == "missing" else heading
                lines = wrapped(f"{name}: {result.status}: {result.why}")
                if lines[0] not in printed:
                    printed.add(lines[0])
                    yield from lines
                continue
            if heading not in printed:
                printed.add(heading)
                yield heading
            yield from _lines(result)


def worst_of_each_dtype(results: Iterable[CheckResult]) -> list[CheckResult]:
    """One result for each dtype, in the order of the results."""
    by_dtype: dict[str, list[CheckResult]] = {}
    for one in results:
        by_dtype.setdefault(one.dtype, []).append(one)
    return [max(of_dtype, key=CheckResult.severity) for of_dtype in by_dtype.values()]


def legend(results: Sequence[CheckResult]) -> Iterator[str]:
    """What the words of the table mean, and what may surprise in it."""
    yield from LEGEND
    judged = [one for one in results if one.max_error is not None]
    if any(one.operation.startswith("add_") and one.direction == "backward" for one in judged):
        yield from STORED_H
    if not all(one.ours for one in judged):
        yield "More is accepted of other providers than of rownorm: docs/method.md."


def outcome(result: CheckResult) -> str:
    """The result in words."""
    if not result.ok:
        return "TOO LARGE" if result.status == "over" else "FAILED"
    ulp = result.max_ulp or 0.0
    if ulp <= ROUNDED:
        return "correctly rounded"
    if result.truncated and ulp <= 2 * ROUNDED:
        return "truncated once, by the interpreter"
    if ulp < 1:
        return "within 1 ulp"
    return f"{percent((result.closest_ulp or 0) / (result.accepted_ulp or 1))} of what is accepted"


def _lines(result: CheckResult) -> Iterator[str]:
    words = outcome(result)
    ulp, accepted = result.closest_ulp, result.accepted_ulp
    if result.ok and "accepted" not in words:
        ulp, accepted = result.max_ulp, None
    numbers = (
        f"{if_known(value, text):>{width}}"
        for value, width, text in (
            (result.max_error, 10, _short),
            (result.mean_error, 11, _short),
            (ulp, 8, _ulp),
            (accepted, 9, _ulp),
        )
    )
    yield f"  {result.dtype:6} {result.data:9} {' '.join(numbers)}   {words}".rstrip()
    if not result.ok:
        yield from wrapped(f"{'':9}{result.why}", indent=9)


def _short(value: float) -> str:
    return f"{value:.2g}"


def _ulp(value: float) -> str:
    return significant(value, 2)
