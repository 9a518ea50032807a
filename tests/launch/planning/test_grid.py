"""The grid regime: backward of wide rows on NVIDIA GPUs."""

import dataclasses

import pytest
import torch

from rownorm import launch
from rownorm.launch import force
from rownorm.launch.planning import grid
from support.planning import (
    AMPERE,
    BLACKWELL,
    H200,
    MI300X,
    assert_grid,
    calls,
    compiled_for,
    planner,
    problem,
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("n_cols", [32768, 262144, 132 * 2048, 1 << 19])
def test_a_grid_takes_backward_of_wide_rows(n_cols, dtype):
    for n_rows in (1, 16, 1024):
        asked = problem("backward", n_rows, n_cols, dtype, BLACKWELL)
        plan = launch.plan(asked)
        assert plan.regime == "grid"
        assert "all over the GPU" in plan.reason
        assert_grid(asked, plan)
    assert launch.plan(problem("backward", 1024, n_cols, dtype, MI300X)).regime == "looped"


def test_a_grid_is_no_larger_than_the_gpu():
    widest = AMPERE.n_sms * 2 * 4096
    for n_cols in (10_000, widest):
        asked = problem("backward", 1024, n_cols, on=AMPERE)
        assert launch.plan(asked).regime == "grid"
        assert_grid(asked, launch.plan(asked))
    assert launch.plan(problem("backward", 1024, widest + 1, on=AMPERE)).regime == "looped"


def test_a_grid_is_not_for_fp64_nor_for_forward():
    assert launch.plan(problem("backward", 1024, 262144, torch.float64)).regime == "looped"
    with force(regime="grid"):
        assert launch.plan(problem("forward", 1024, 262144)).regime == "looped"
        assert launch.plan(problem("backward", 1024, 262144, torch.float64)).regime == "looped"
        assert launch.plan(problem("backward", 4, 4096)).regime == "grid"


def test_messages_of_a_grid_stay_within_the_budget_of_partial_sums():
    """8 bytes for each part of a row, in what the sums of all groups leave of 64 MiB."""
    asked = problem("backward", 1, 262144, on=BLACKWELL)
    plan = launch.plan(asked)
    sums = 4 * grid.most_groups(plan, asked) * asked.n_column_sums * 262144
    most_rows = ((64 << 20) - sums) // (8 * 262144 // plan.part_cols)
    for n_rows, regime in ((most_rows, "grid"), (most_rows + 1, "looped")):
        assert launch.plan(dataclasses.replace(asked, n_rows=n_rows)).regime == regime


@pytest.mark.parametrize("on", [H200, BLACKWELL], ids=lambda on: on.arch)
def test_the_number_of_rows_compiles_nothing_new_in_a_grid(on):
    for n_cols in (131072, 200_000, 262144):
        compiled = set()
        for n_rows in (18, 100, 1000, 20000):
            asked = problem("backward", n_rows, n_cols, torch.bfloat16, on)
            assert launch.plan(asked).regime == "grid"
            compiled |= {one for one in compiled_for(asked) if one[0] == "backward_grid"}
        assert len(compiled) == 1


@pytest.mark.parametrize("groups", [1, 2])
def test_one_group_writes_the_sums_itself(groups):
    with force(regime="grid", n_programs=groups):
        plan = launch.plan(problem("backward", 1000, 131072, torch.bfloat16))
        steps = calls(problem("backward", 1000, 131072, torch.bfloat16))
    assert [one.kernel.__name__ for one in steps] == ["backward_grid", "column_sums"][:groups]
    assert steps[0].cooperative
    assert steps[0].grid == groups * 131072 // plan.part_cols


def test_an_activation_leaves_a_grid_smaller_tiles():
    asked = problem("backward", 1024, 262144, torch.bfloat16, BLACKWELL)
    plain = launch.plan(asked)
    plan = launch.plan(dataclasses.replace(asked, activation="gelu"))
    assert plan.block_cols == plain.block_cols // 2
    assert "smaller tiles" in plan.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("arch", ["sm_90", "sm_89", "sm_100"])
def test_a_residual_leaves_a_grid_three_stages(arch, dtype):
    on = H200._replace(arch=arch)
    for n_cols in (32768, 262144):
        asked = problem("backward", 1024, n_cols, torch.bfloat16, on, center=False)
        plan = launch.plan(dataclasses.replace(asked, residual_dtype=dtype))
        assert (plan.regime, plan.num_stages) == ("grid", 3)


@pytest.mark.parametrize("residual", [None, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_a_third_sum_leaves_a_grid_three_stages(arch, residual, monkeypatch):
    """By rules: the table may have an entry for a third sum, which only the Triton that measured it uses."""
    monkeypatch.setattr(planner, "table_of", lambda arch: None)
    on = H200._replace(arch=arch)
    asked = problem("backward", 4096, 16384, torch.bfloat16, on, n_column_sums=3)
    plan = launch.plan(dataclasses.replace(asked, residual_dtype=residual))
    assert plan.regime == "grid"
    assert plan.num_stages >= 3


def test_a_grid_takes_one_row_at_a_time():
    with force(regime="grid", block_rows=4), pytest.raises(ValueError, match="must be 1 in a grid"):
        launch.plan(problem("backward", 1024, 262144, torch.bfloat16))


def test_a_plan_of_a_grid_prints_parts_groups_and_depth():
    plan = launch.plan(problem("backward", 1024, 262144, torch.bfloat16, BLACKWELL))
    text = str(dataclasses.replace(plan, n_programs=2))
    tile = f"grid: {plan.block_rows} x {plan.block_cols} tile"
    depth = f"pipeline depth {plan.pipeline_depth}"
    for words in (tile, f"{plan.part_cols} columns per part", "2 groups", depth):
        assert words in text
