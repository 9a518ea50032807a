"""Plans with scale and shift: regimes that have them, and spans of the rows of a sample."""

import dataclasses

import pytest

from rownorm import launch
from rownorm.launch.planning import modulation
from rownorm.launch.problem import Samples
from support.planning import problem


def modulated(direction, n_samples, rows_per_sample, n_cols):
    asked = problem(direction, n_samples * rows_per_sample, n_cols)
    sums = 2 if direction == "backward" else 0
    return dataclasses.replace(
        asked,
        samples=Samples(rows_per_sample, n_samples),
        sample_bytes=4,
        n_column_sums=sums,
        n_sample_sums=sums,
    )


@pytest.mark.parametrize("n_cols", [1, 64, 1152, 3072, 5120, 8192, 20_000, 70_000, 300_000])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_no_regime_without_scale_and_shift_is_planned(direction, n_cols):
    plan = launch.plan(modulated(direction, 4, 100, n_cols))
    assert plan.regime != modulation.WITHOUT[direction]


@pytest.mark.parametrize(("n_samples", "rows"), [(1, 5000), (64, 1024), (300, 64), (5000, 3)])
def test_spans_cover_every_row_and_leave_no_program_idle(n_samples, rows):
    plan = launch.plan(modulated("backward", n_samples, rows, 3072))
    n_spans = n_samples * plan.spans_per_sample
    assert 1 <= plan.spans_per_sample <= rows
    assert 1 <= plan.n_programs <= n_spans
    assert (plan.sample_sums_tile is None) == (plan.spans_per_sample == 1)
    busiest = -(-n_spans // plan.n_programs) * -(-rows // plan.spans_per_sample)
    assert busiest <= 1.25 * n_samples * rows / plan.n_programs + modulation.SPAN_OVERHEAD_ROWS


def test_rows_with_their_own_samples_are_stored_directly():
    plan = launch.plan(modulated("backward", 4096, 1, 3072))
    assert plan.own_samples
    assert plan.sums_tile is plan.sample_sums_tile is None
