"""The table that ``rownorm check`` prints."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ..measure.check import CheckResult


def check_table(results: Iterable[CheckResult], brief: bool = False) -> Iterator[str]:
    """Lines as the results come, under a heading for each provider, operation and pass.

    brief: only the worst result of each heading. A reason why something was not computed is printed once.
    """
    yield f"{'':2}{'dtype':7}{'data':11}{'max error':>10}{'mean error':>12}{'ulp':>9}{'of budget':>11}"
    printed: set[str] = set()
    blocks = itertools.groupby(results, lambda one: (one.provider, one.operation, one.direction))
    for (provider, operation, direction), block in blocks:
        heading = f"{provider} {operation} {direction}"
        shown: Iterable[CheckResult] = block
        if brief:
            shown = [max(block, key=lambda one: (not one.ok, one.budget_used or 0.0))]
        for result in shown:
            if result.max_error is None and result.ok:
                name = provider if result.status == "missing" else heading
                line = f"{name}: {result.status}: {result.why}"
            else:
                line = heading
                heading = heading if brief else ""
            if line and line not in printed:
                printed.add(line)
                yield line
            if result.max_error is not None or not result.ok:
                yield _line(result)


def _line(result: CheckResult) -> str:
    errors = (result.max_error, result.mean_error, result.max_ulp)
    cells = "".join(
        f"{'' if value is None else f'{value:.2g}':>{width}}"
        for value, width in zip(errors, (10, 12, 9), strict=True)
    )
    used, failure = result.budget_used, ""
    budget = "" if used is None else f"{used:.0f}x" if used >= 10 else f"{used:.0%}"
    if not result.ok:
        failure = f"  TOO LARGE: {result.why}" if result.status == "over" else f"  {result.why}"
    return f"  {result.dtype:7}{result.data:11}{cells}{budget:>11}{failure}"
