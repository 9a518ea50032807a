"""Plans with scale, shift and gates: regimes that have them, registers, and spans of the rows of a sample."""

import dataclasses

import pytest
import torch

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
    assert plan.regime not in modulation.WITHOUT[direction]


@pytest.mark.parametrize(
    ("n_samples", "rows"),
    [(1, 5000), (64, 1024), (300, 64), (5000, 3), (1, 256), (64, 256), (1, 60_000), (64, 60_000)],
)
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


def gated(direction, n_cols, dtype=torch.bfloat16, **fields):
    asked = problem(direction, 65536, n_cols, dtype=dtype, center=False)
    fields = {"gate_dtype": dtype, **fields}
    if direction == "backward":
        fields["n_column_sums"] = 1
    return dataclasses.replace(asked, **fields)


def elements_per_thread(plan, n_cols):
    cols = plan.chunks * plan.block_cols
    assert plan.cluster_size * cols >= n_cols
    return plan.block_rows * cols // (32 * plan.num_warps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_two_wide_forward_programs_with_a_gate_fit_on_a_multiprocessor(dtype):
    plan = launch.plan(gated("forward", 8192, dtype))
    assert (plan.num_warps, plan.block_cols, plan.chunks) == (16, 4096, 2)
    without = launch.plan(gated("forward", 8192, dtype, gate_first=True))
    assert (without.num_warps, without.chunks) == (16, 1)


@pytest.mark.parametrize("n_cols", [7168, 8192])
def test_wide_backward_rows_have_registers_for_a_gate(n_cols):
    plan = launch.plan(gated("backward", n_cols, gate_first=True))
    assert elements_per_thread(plan, n_cols) <= 28
    residual = dataclasses.replace(
        modulated("backward", 64, 1024, n_cols),
        residual_dtype=torch.bfloat16,
        residual_gate=True,
        n_column_sums=3,
        n_sample_sums=3,
    )
    plan = launch.plan(residual)
    assert plan.regime == "cluster"
    assert elements_per_thread(plan, n_cols) <= 16


@pytest.mark.parametrize("n_cols", [64, 128, 768, 2304, 3072, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_half_the_rows_of_a_tile_are_still_loaded_in_16_bytes(dtype, n_cols):
    plan = launch.plan(gated("backward", n_cols, dtype, gate_first=True))
    tile_bytes = plan.block_rows * plan.block_cols * dtype.itemsize
    assert tile_bytes >= 16 * 32 * plan.num_warps
