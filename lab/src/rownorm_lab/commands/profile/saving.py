"""What rownorm would save in a script: its time for every norm that was found.

The time is measured here, with the lab's timing and cold caches. If that fails on a GPU, it is the prediction of
``rownorm analyze``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from ...data.case import Case
from ...data.profiles import ScriptNorm
from ...data.records import OURS
from ...data.runs import run_id
from ...device.facts import describe
from ...measure.bench import bench, in_one_line

MOST = 8  # cases that are measured, those with the most time first
ROUNDS = 5
BUDGET_S = 2.0  # of one case


def with_rownorm(
    norms: Sequence[ScriptNorm], on_step: Callable[[str], None] = lambda _: None
) -> list[ScriptNorm]:
    """The norms with the time that rownorm takes for the same calls."""
    cases = {one.case.key: one.case for one in norms if one.case is not None}
    chosen = list(cases.values())[:MOST]
    estimates = dict[str, tuple[float | None, str]]()
    for record in bench(chosen, [OURS], run=run_id(), rounds=ROUNDS, budget_s=BUDGET_S):
        on_step(f"rownorm on {record.case.title}")
        if record.status == "ok":
            estimates[record.case.key] = median(record.seconds), "measured here, cold caches"
        else:
            estimates[record.case.key] = _predicted(record.case, record.why)
    return [_with(one, estimates) for one in norms]


def _with(norm: ScriptNorm, estimates: dict[str, tuple[float | None, str]]) -> ScriptNorm:
    if norm.case is None:
        return msgspec.structs.replace(norm, source=_why_none(norm))
    seconds, source = estimates.get(norm.case.key, (None, f"not among the {MOST} largest"))
    ours = None if seconds is None else seconds * norm.calls
    return msgspec.structs.replace(norm, rownorm_seconds=ours, source=source)


def _why_none(norm: ScriptNorm) -> str:
    return "rownorm already" if norm.what.startswith("rownorm::") else "shape or dtype unknown"


def _predicted(case: Case, why: str) -> tuple[float | None, str]:
    if describe().kind == "cpu":
        return None, why
    from ...compiled.analysis import analyze
    from ...compiled.compile import compile_case, target_of

    try:
        found = analyze(compile_case(case, target_of("this")))
    except Exception as error:  # of the compiler, whatever its type
        return None, in_one_line(error)
    return found.predicted_seconds, f"predicted by rownorm analyze, because: {why}"
