"""The cluster regime: rules, options, and where there are no clusters."""

import dataclasses

import pytest
import torch

from rownorm import launch
from rownorm.launch import Plan
from rownorm.launch.planning import cluster
from support.planning import AMPERE, BLACKWELL, assert_sound, problem

DIRECTIONS = pytest.mark.parametrize("direction", ["forward", "backward"])
WIDE = pytest.mark.parametrize(("direction", "n_cols"), [("forward", 65536), ("backward", 12288)])


@WIDE
def test_clusters_take_wide_rows(direction, n_cols):
    asked = problem(direction, 4096, n_cols, torch.bfloat16, BLACKWELL)
    plan = launch.plan(asked)
    assert (plan.regime, plan.source) == ("cluster", "rules")
    assert f"cluster of {plan.cluster_size} programs" in plan.reason
    assert_sound(asked, plan)
    # As many clusters as run at once, or slightly fewer if then all have as many rows.
    n, most = plan.n_programs, BLACKWELL.max_clusters(plan.cluster_size, plan.programs_per_sm)
    assert n == most or (0.95 * most < n < most and 4096 % n == 0)
    few = launch.plan(dataclasses.replace(asked, n_rows=2))
    assert few == dataclasses.replace(plan, n_programs=2)  # so nothing new is compiled for them


@WIDE
def test_without_clusters_forward_is_looped_and_backward_in_a_grid(direction, n_cols):
    without = BLACKWELL._replace(clusters=())
    asked = problem(direction, 4096, n_cols, torch.bfloat16, without)
    elsewhere = launch.plan(asked)
    assert elsewhere.regime == {"forward": "looped", "backward": "grid"}[direction]
    if direction == "backward":
        busy = launch.plan(dataclasses.replace(asked, activation="silu"))
        assert busy.block_cols == elsewhere.block_cols // 2


@DIRECTIONS
def test_a_plan_for_clusters_that_a_gpu_has_not_runs_in_another_regime(direction):
    measured = Plan("cluster", 1, 512, 4, cluster_size=4, num_stages=3, source="table for it")
    asked = problem(direction, 4096, 12288, torch.bfloat16, AMPERE)
    plan = cluster.finish(measured, asked)
    assert plan.regime == {"forward": "looped", "backward": "grid"}[direction]
    with launch.force(regime="cluster"):
        assert launch.plan(asked).regime == "cluster"


def test_plans_of_the_rules_obey_the_limit_of_registers_and_measured_ones_do_not():
    wide = Plan("cluster", 1, 1024, 8, cluster_size=2)
    asked = problem("backward", 4096, 7168, torch.float32, BLACKWELL)
    assert cluster.finish(wide, asked).regime == "grid"
    measured = dataclasses.replace(wide, source="table for it")
    assert cluster.finish(measured, asked).regime == "cluster"


@DIRECTIONS
def test_fp64_has_no_clusters(direction):
    asked = problem(direction, 4096, 65536, torch.float64, BLACKWELL)
    assert launch.plan(asked).regime == "looped"
    with launch.force(regime="cluster"):
        assert launch.plan(asked).regime == "looped"


def test_a_forward_cluster_that_prefetches_nothing_has_one_row():
    alone = Plan("cluster", 1, 2048, 8, cluster_size=4, num_stages=1)
    asked = problem("forward", 4096, 65536, torch.bfloat16, BLACKWELL)
    assert cluster.finish(alone, asked).n_programs == 4096
    ahead = dataclasses.replace(alone, num_stages=2)
    assert cluster.finish(ahead, asked).n_programs == BLACKWELL.max_clusters(4)


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_a_residual_takes_more_programs_per_row(center):
    asked = problem(n_rows=4096, n_cols=65536, dtype=torch.bfloat16, on=BLACKWELL, center=center)
    plain = launch.plan(asked)
    plan = launch.plan(dataclasses.replace(asked, residual_dtype=torch.bfloat16))
    assert (plan.regime, plan.num_stages) == ("cluster", 2)
    assert plan.cluster_size >= plain.cluster_size
    assert "residual" in plan.reason
    wider = launch.plan(dataclasses.replace(asked, residual_dtype=torch.float32))
    assert wider.cluster_size == 2 * plan.cluster_size  # 6 bytes per element instead of 4


@pytest.mark.parametrize(("n_cols", "regime"), [(262144, "cluster"), (524288, "looped")])
@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_a_residual_of_the_widest_rows_is_not_prefetched(center, n_cols, regime):
    plain = Plan("cluster", 1, 4096, 16, cluster_size=16, num_stages=2, source="table for it")
    asked = problem("forward", 4096, n_cols, torch.float32, BLACKWELL, center=center)
    asked = dataclasses.replace(asked, residual_dtype=torch.float32)
    plan = cluster.with_residual(plain, asked)
    assert (plan.regime, plan.num_stages) == (regime, 1)


@pytest.mark.parametrize(
    ("changes", "fast"),
    [
        ({}, False),
        ({"residual_dtype": torch.float32}, True),
        ({"residual_dtype": torch.float32, "activation": "silu"}, False),
        ({"residual_dtype": torch.float32, "pre_bias": True}, False),
    ],
)
def test_rstd_is_fast_where_a_residual_needs_the_registers(changes, fast):
    asked = problem(n_rows=4096, n_cols=65536, on=BLACKWELL, **changes)
    plan = launch.plan(asked)
    assert (plan.regime, plan.fast_rstd) == ("cluster", fast)


def test_a_pre_bias_takes_smaller_tiles_and_lifts_the_limit_of_registers():
    plain = Plan("cluster", 1, 4096, 8, cluster_size=8, maxnreg=64)
    asked = problem(n_rows=1024, n_cols=131072, dtype=torch.float32, pre_bias=True)
    plan = cluster.with_options(plain, asked)
    assert (plan.block_cols, plan.maxnreg) == (2048, 0)
    narrow = dataclasses.replace(plain, block_cols=1024)  # 16 bytes for each thread
    assert cluster.with_options(narrow, asked).block_cols == 1024


@pytest.mark.parametrize(
    ("n_cols", "changes", "regime"),
    [
        (8192, {"n_column_sums": 3}, "resident"),
        (16384, {"n_column_sums": 3}, "grid"),
        (8192, {"n_column_sums": 3, "activation": "silu"}, "grid"),
    ],
)
def test_a_third_sum_takes_no_larger_cluster(n_cols, changes, regime):
    plain = Plan("cluster", 1, 512, 4, cluster_size=n_cols // 4096, num_stages=3)
    asked = problem("backward", 4096, n_cols, torch.bfloat16, **changes)
    plan = cluster.with_options(plain, asked)
    assert plan.regime == regime
    assert plan.reason
