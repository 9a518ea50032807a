"""What only some regimes have: samples (scale, shift, residual_gate), with a row for each, gates, rounding="each".

Forward, a program computes several rows, one after the other, so that it finds scale and shift of a sample in L1.
Backward adds up the gradients of samples over the rows of each. A program computes spans of rows, each within one
sample, and stores their sums; where a sample has several spans, the kernel ``sample_sums`` adds these up.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ..problem import Problem
from . import cluster, multipass, resident
from .capacity import (
    PARTIAL_SUM_BYTES,
    ceil_div,
    chunks_of,
    sums_tile,
    threads_of,
    vector_cols,
)
from .settings import Plan, SumsTile

# Regimes that have neither: their programs keep the parameters of the first row for all rows, or work on two rows at
# once, and load no other rows than x and the residual.
WITHOUT = {"forward": ("cluster",), "backward": ("grid",)}
# Forward: rows of a program. Programs with one row each all come to the next sample at the same time, and wait for its
# scale and shift; with many rows each, the last programs run alone (experiment MOD-01). Two stages want fewer rows.
ROWS_PER_PROGRAM = {1: 6, 2: 4}
PROGRAMS_PER_SM = 64  # at least so many, or a program has one row


class _Tile(NamedTuple):
    """16-bit rows in one program, without a residual and a gate: the fastest of what was tried on an H200."""

    most_cols: int
    block_cols: int
    num_warps: int
    num_stages: int
    programs_per_sm: int = 1
    most_sums: int = 3  # backward: there are registers for so many


FEWEST_COLS = 1025  # shorter rows: several in a program
TILES = {  # experiments MOD-01, MOD-02
    "forward": (
        _Tile(1280, 256, 1, 2),
        _Tile(2560, 512, 2, 2),
        _Tile(5120, 1024, 4, 1),
        _Tile(6144, 2048, 8, 1),
        _Tile(7168, 1024, 8, 1),
        _Tile(8192, 4096, 8, 1),
    ),
    "backward": (
        _Tile(1280, 512, 2, 4, 4),
        _Tile(1536, 512, 4, 4, 3),
        _Tile(2048, 1024, 4, 4, 3),
        _Tile(2560, 1024, 4, 4, 2),
        _Tile(3072, 1024, 4, 3, 2),
        _Tile(4096, 1024, 4, 3, 2, most_sums=2),
    ),
}
# Elements of a row that a thread has no registers for: in forward beside a gate of the result, if two programs of
# MOST_WARPS are to fit on a multiprocessor; in backward of 16-bit rows beside a gate_first, or a residual_gate.
MOST_WARPS = 16
CROWDED = {"forward": 16, "gate_first": 32, "residual_gate": 28}
# Beginning a span, and storing its sums, takes about as long as so many rows.
SPAN_OVERHEAD_ROWS = 4
MOST_SPANS = 4096  # of a sample
# Few partial sums for each of many samples, or many for one: one kernel for all numbers of rows.
SAMPLE_SUMS_TILE = SumsTile(16, 64, 4)


def applies(problem: Problem) -> bool:
    """Whether a problem has samples or a gate, or rounds every step."""
    return problem.samples is not None or problem.gate_dtype is not None or problem.rounds_each


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
    if plan.regime in WITHOUT[problem.direction]:
        regime = resident if resident.applies(problem) else multipass
        asked = planned_as(problem)
        other = regime.rule(asked)
        plan = (regime.with_options(other, asked) or multipass.rule(asked)).adapted(
            f"{_what(problem)} in the regime {plan.regime}"
        )
    if problem.direction == "backward" and problem.gate_first and plan.block_rows > 1:
        plan = _with_half_the_rows(plan, problem)
    if plan.source != "forced":
        if (tile := _tile(problem)) is not None:
            return _tiled(tile, problem)
        plan = _with_registers(plan, problem)
    if plan.prefetch_parameters and problem.samples is not None:
        return plan.adapted(
            "parameters not prefetched, because scale and shift would take more registers",
            prefetch_parameters=False,
        )
    return plan


def _with_half_the_rows(plan: Plan, problem: Problem) -> Plan:
    """Backward with the gate first: h and the gate are kept until dx is known."""
    block_rows, num_warps = plan.block_rows // 2, plan.num_warps
    tile_bytes = block_rows * plan.block_cols * problem.dtype.itemsize
    while num_warps > 1 and tile_bytes < 16 * problem.device.warp_size * num_warps:
        num_warps //= 2  # a thread still loads 16 bytes at once
    return plan.adapted(
        "half the rows of a tile, because h and the gate are kept until dx is known",
        regime="tile" if block_rows > 1 else "resident",
        block_rows=block_rows,
        num_warps=num_warps,
        programs_per_sm=min(2, plan.num_warps // num_warps) * plan.programs_per_sm,
    )


def _with_registers(plan: Plan, problem: Problem) -> Plan:
    """Fewer elements for a thread, where the plan of a norm without gates is too wide for them (experiment MOD-04)."""
    cols = plan.block_cols * chunks_of(plan, problem)
    elements = plan.block_rows * cols // threads_of(plan, problem)
    if problem.direction == "forward":
        has_gate_last = problem.gate_dtype is not None and not problem.gate_first
        is_wide = plan.regime == "resident" and plan.block_cols > vector_cols(plan, problem)
        crowded = elements >= CROWDED["forward"] and plan.num_warps == MOST_WARPS
        if not (has_gate_last and is_wide and crowded):
            return plan
        return plan.adapted(
            "tiles of half the columns, so that with a gate two programs fit on a multiprocessor",
            block_cols=plan.block_cols // 2,
        )
    kinds = [name for name in ("gate_first", "residual_gate") if getattr(problem, name)]
    if problem.dtype.itemsize > 2 or not any(elements >= CROWDED[name] for name in kinds):
        return plan
    if plan.regime == "cluster":
        return plan.adapted(
            f"twice the warps, because {kinds[0]} takes registers",
            block_cols=2 * plan.block_cols,
            num_warps=2 * plan.num_warps,
            programs_per_sm=max(1, plan.programs_per_sm // 2),
        )
    if plan.regime == "resident" and problem.residual_gate and problem.device.max_clusters(2):
        return cluster.widened(plan, problem)
    return plan


def _tile(problem: Problem) -> _Tile | None:
    """The tile of a problem with samples, if it has one of its own."""
    if (
        problem.samples is None
        or problem.residual_dtype is not None
        or problem.gate_dtype is not None
        or problem.dtype.itemsize != 2
        or problem.device.warp_size != 32
        or problem.n_cols < FEWEST_COLS
        or (problem.direction == "backward" and problem.activation is not None)
    ):
        return None
    tiles = (tile for tile in TILES[problem.direction] if problem.n_cols <= tile.most_cols)
    tile = next(tiles, None)
    return None if tile is None or problem.n_column_sums > tile.most_sums else tile


def _tiled(tile: _Tile, problem: Problem) -> Plan:
    forward = problem.direction == "forward"
    return Plan(
        "resident",
        1,
        tile.block_cols,
        tile.num_warps,
        programs_per_sm=tile.programs_per_sm,
        num_stages=tile.num_stages,
        fast_rstd=forward,
        reason=f"rows of up to {tile.most_cols} columns with samples (experiment {'MOD-01' if forward else 'MOD-02'})",
    )


def _what(problem: Problem) -> str:
    """What a regime lacks, with its verb."""
    if problem.samples is not None:
        return "samples are not read"
    return "not every step is rounded" if problem.gate_dtype is None else "a gate is not read"


def with_samples(plan: Plan, problem: Problem) -> Plan:
    """The finished plan, with the rows that each program computes where there are samples."""
    if problem.samples is None:
        return plan
    if problem.direction == "backward":
        return _with_spans(plan, problem)
    if plan.regime not in ("tile", "resident"):
        return plan
    rows = 1
    if problem.samples.rows_per_sample > 1 and problem.samples.n_samples > 1:
        shared = problem.n_rows // (problem.device.n_sms * PROGRAMS_PER_SM)
        rows = min(ROWS_PER_PROGRAM[min(2, plan.num_stages)], max(1, shared))
    return dataclasses.replace(
        plan, rows_per_program=ceil_div(rows, plan.block_rows) * plan.block_rows
    )


def _with_spans(plan: Plan, problem: Problem) -> Plan:
    """Backward: the plan with the spans of each sample, and the programs that compute them."""
    assert problem.samples is not None
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
