"""What only some regimes have: samples (scale, shift, residual_gate), with a row for each, gates, rounding="each".

Backward adds up the gradients of samples over the rows of each. A program computes spans of rows, each within one
sample, and stores their sums; where a sample has several spans, the kernel ``sample_sums`` adds these up.
"""

from __future__ import annotations

import dataclasses

from ..problem import Problem
from . import multipass, resident
from .capacity import PARTIAL_SUM_BYTES, ceil_div, sums_tile
from .settings import Plan, SumsTile

# Regimes that have neither: their programs keep the parameters of the first row for all rows, or work on two rows at
# once, and load no other rows than x and the residual.
WITHOUT = {"forward": "cluster", "backward": "grid"}
# Beginning a span, and storing its sums, takes about as long as so many rows.
SPAN_OVERHEAD_ROWS = 4
MOST_SPANS = 4096  # of a sample
# Few partial sums for each of many samples, or many for one: one kernel for all numbers of rows.
SAMPLE_SUMS_TILE = SumsTile(16, 64, 4)


def applies(problem: Problem) -> bool:
    """Whether a problem has samples or a gate, or rounds every step."""
    return (
        problem.samples is not None or problem.gate_dtype is not None or problem.rounds_each
    )


def planned_as(problem: Problem) -> Problem:
    """The problem whose plan is looked up.

    For backward of RMSNorm with samples and two sums that of LayerNorm, which has two: the plans of RMSNorm have
    registers for one. A gate takes about the registers of an activation.
    """
    has_two_sums = problem.direction == "backward" and problem.n_column_sums > 1
    if problem.samples is not None and has_two_sums:
        problem = dataclasses.replace(problem, center=True)
    if problem.gate_dtype is not None and problem.activation is None:
        problem = dataclasses.replace(problem, activation="silu")
    return problem


def supported(plan: Plan, problem: Problem) -> Plan:
    """The plan, or that of a regime that has samples and gates."""
    if plan.regime == WITHOUT[problem.direction]:
        regime = resident if resident.applies(problem) else multipass
        asked = planned_as(problem)
        other = regime.rule(asked)
        plan = (regime.with_options(other, asked) or multipass.rule(asked)).adapted(
            f"{_what(problem)} in the regime {plan.regime}"
        )
    keeps_h = problem.direction == "backward" and problem.gate_first
    if keeps_h and plan.block_rows > 1:
        block_rows = plan.block_rows // 2
        plan = plan.adapted(
            "half the rows of a tile, because h and the gate are kept until dx is known",
            regime="tile" if block_rows > 1 else "resident",
            block_rows=block_rows,
        )
    if plan.prefetch_parameters and problem.samples is not None:
        return plan.adapted(
            "parameters not prefetched, because scale and shift would take more registers",
            prefetch_parameters=False,
        )
    return plan


def _what(problem: Problem) -> str:
    """What a regime lacks, with its verb."""
    if problem.samples is not None:
        return "samples are not read"
    return "not every step is rounded" if problem.gate_dtype is None else "a gate is not read"


def with_spans(plan: Plan, problem: Problem) -> Plan:
    """Backward with samples: the finished plan with the spans of each, and the programs that compute them."""
    if problem.direction == "forward" or problem.samples is None:
        return plan
    n_samples = problem.samples.n_samples
    own_samples = problem.own_samples and plan.regime not in ("looped", "split")
    spans = 1 if own_samples else _spans(plan.n_programs, problem)
    n_programs = plan.n_programs if own_samples else min(plan.n_programs, n_samples * spans)
    plan = dataclasses.replace(plan, n_programs=max(1, n_programs))
    column_sums = dataclasses.replace(
        problem, n_column_sums=problem.n_column_sums - problem.n_sample_sums
    )
    return dataclasses.replace(
        plan,
        own_samples=own_samples,
        spans_per_sample=spans,
        sums_tile=sums_tile(plan, column_sums),
        sample_sums_tile=SAMPLE_SUMS_TILE if spans > 1 and problem.n_sample_sums else None,
    )


def _spans(n_programs: int, problem: Problem) -> int:
    """The number of spans of a sample with which the busiest of the programs has the fewest rows.

    64 samples of 1024 rows and 132 programs: 2 spans, 128 programs with 512 rows each.
    """
    assert problem.samples is not None
    n_samples = max(1, problem.samples.n_samples)
    sample_rows = problem.n_rows // n_samples
    itemsize = 8 if problem.computes_in_fp64 else 4
    sum_bytes = problem.n_cols * itemsize * max(1, problem.n_sample_sums)

    def rows_of_busiest(spans: int) -> int:
        per_program = ceil_div(n_samples * spans, n_programs)
        return per_program * (ceil_div(sample_rows, spans) + SPAN_OVERHEAD_ROWS)

    most = min(n_programs, sample_rows, MOST_SPANS, PARTIAL_SUM_BYTES // (n_samples * sum_bytes))
    return min(range(1, max(1, most) + 1), key=rows_of_busiest)
