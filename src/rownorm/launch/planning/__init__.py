"""Problem -> Plan: which regime runs a problem, with which settings.

    1. the entry of the tuned table for exactly this problem (``table``), else
    2. the entry of the plain norm, adapted to the residual and the options by its regime, else
    3. the rule of the first regime that applies, adapted in the same way;
    4. the regime finishes the plan: chunks, stages, how many programs share the rows, and variants of the kernels;
    5. with samples (scale, shift, residual_gate) or a gate, ``modulation`` replaces a regime that has no kernel for
       them, and divides the rows of each sample among the programs of backward.

Backward whose tensors have 16-bit and 32-bit elements is apart: no entry was tuned for all mixtures of them
(``_chosen``).

``files`` says which tables there are: a user's own come before the shipped ones. One file for each regime decides all
of its settings, and has the name of the file of its kernels: ``resident`` (tile and resident; its rules for rows that
are not aligned are in ``unaligned``), ``cluster``, ``grid``, ``multipass`` (looped and split). ``capacity`` has the
limits that they share, ``compiler`` what depends on Triton's version. Why a call gets its settings: print
``rownorm.explain(rownorm.rms_norm, x, weight)``. It names the entry or the rule.

The number of rows changes no kernel, except between looped and split: ``n_programs`` and ``part_cols`` are arguments.
``depends_on_rows`` says of which problems it changes the bits of a row. With ``Problem.batch_invariant`` of none.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from ..problem import Problem
from . import cluster, grid, modulation, multipass, resident
from .capacity import n_parts
from .files import table_of
from .settings import REGIMES, Plan, Regime

__all__ = [
    "REGIMES",
    "Plan",
    "Regime",
    "depends_on_rows",
    "force",
    "n_parts",
    "on_change",
    "plan",
    "settings_of_a_row",
]

# Each of these modules has rule, with_options and finish, and those with a forward have with_residual. with_options may
# return None (``resident`` does): one program has no registers for a row with these options, and ``cluster.widened``
# decides.
_MODULES: dict[Regime, ModuleType] = {
    "tile": resident,
    "resident": resident,
    "cluster": cluster,
    "grid": grid,
    "looped": multipass,
    "split": multipass,
}
MOST_ROWS = 2**31 - 1
_forced: dict[str, Any] = {}
_callbacks: list[Callable[[], None]] = []


def plan(problem: Problem) -> Plan:
    """The plan for a problem: a pure function of it, of Triton's version, and of ``force``."""
    regime: Regime | None = _forced.get("regime")
    has_more = modulation.applies(problem)
    asked = modulation.planned_as(problem) if has_more else problem
    chosen = _of_regime(regime, problem) if regime else _chosen(asked)
    if _forced:
        chosen = dataclasses.replace(chosen, **_forced, source="forced", reason="forced", second="")
    if has_more:
        chosen = modulation.supported(chosen, problem)
    finished: Plan = _MODULES[chosen.regime].finish(chosen, problem, forced=regime is not None)
    return modulation.with_samples(finished, problem) if has_more else finished


def _chosen(problem: Problem) -> Plan:
    """The exact entry of the table, else the plain norm's entry or rule, adapted to what the problem has beside it."""
    table = table_of(problem.device.arch)
    residual = problem.residual_dtype.itemsize if problem.residual_dtype else 0
    if problem.mixed and residual == 4:
        # The entries for 16-bit rows beside a 32-bit residual have one layout for both (experiment BR-18).
        problem = dataclasses.replace(problem, dtype=torch.bfloat16)
    elif resident.applies_to_mixed(problem):
        return _with_options(resident.mixed_rule(problem), problem)
    if table and (exact := table.find(problem, residual, problem.option)):
        return exact
    if table and (with_residual := table.find(problem, residual, "")):
        return _with_options(with_residual, problem)
    plain = (table and table.find(problem, 0, "")) or _of_rules(problem)
    return _with_options(_with_residual(plain, problem), problem)


def _of_rules(problem: Problem) -> Plan:
    """The rule of the first regime that applies. Any row can be loaded in chunks."""
    regimes = (each for each in (resident, cluster, grid) if each.applies(problem))
    return next(regimes, multipass).rule(problem)


def _of_regime(regime: Regime, problem: Problem) -> Plan:
    """The rule of a regime, whether it applies or not."""
    rules: dict[str, Callable[[Problem], Plan]] = {
        "tile": resident.several_rows,
        "resident": resident.one_row,
    }
    rule = rules.get(regime, _MODULES[regime].rule)
    return rule(problem)


def _with_residual(plain: Plan, problem: Problem) -> Plan:
    """Forward: the plan adapted to a residual.

    Backward keeps its plan: a residual only takes shared memory there, and ``finish`` lowers the number of stages.
    """
    if problem.direction == "backward" or problem.residual_dtype is None:
        return plain
    adapted: Plan = _MODULES[plain.regime].with_residual(plain, problem)
    return adapted


def _with_options(plain: Plan, problem: Problem) -> Plan:
    """The plan adapted to activation, pre_bias and third column sum.

    A cluster or a grid (``cluster.widened``) where one program has no registers for a row with these options.
    """
    adapted: Plan | None = _MODULES[plain.regime].with_options(plain, problem)
    return adapted or cluster.widened(plain, problem)


def settings_of_a_row(plan: Plan) -> Plan:
    """The plan without what does not change the bits of a row: which programs compute the rows, and sums over rows."""
    return dataclasses.replace(plan, n_programs=0, rows_per_program=0, sums_tile=None)


def depends_on_rows(problem: Problem) -> bool:
    """Whether another number of rows can change the bits of a row.

    One row and the most rows show it: every threshold is passed between them.
    """
    one, most = (
        settings_of_a_row(plan(dataclasses.replace(problem, n_rows=n))) for n in (1, MOST_ROWS)
    )
    return one != most


@contextlib.contextmanager
def force(**settings: Any) -> Iterator[None]:
    """Within this context, plans have these settings: ``with force(regime="split", part_cols=64): ...``

    For tests and tuners. It holds for every thread, and drops what was prepared from earlier plans.
    """
    global _forced
    before, _forced = _forced, {**_forced, **settings}
    _notify()
    try:
        yield
    finally:
        _forced = before
        _notify()


def on_change(forget: Callable[[], None]) -> None:
    """Call ``forget`` whenever plans may have changed; it drops what was made from them."""
    _callbacks.append(forget)


def _notify() -> None:
    for forget in _callbacks:
        forget()
