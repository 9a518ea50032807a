"""Settings that depend on the version of Triton."""

import pytest
import torch

from rownorm import launch
from rownorm.launch.planning import compiler, resident
from support.planning import AMPERE, BLACKWELL, MI300X, problem, table_with

ALONE = {"regime": "cluster", "block_rows": 1, "block_cols": 4096, "num_warps": 8}
ALONE |= {"cluster_size": 8, "maxnreg": 64}
WIDE = {"n_rows": 4096, "n_cols": 131072, "dtype": torch.bfloat16, "center": False}


@pytest.mark.parametrize(
    ("version", "maxnreg", "block_cols"),
    [((3, 6), 64, 4096), ((3, 7), 64, 4096), ((3, 8), 0, 4096), ((3, 9), 0, 2048)],
)
def test_limits_of_registers_are_for_versions_that_do_not_spill(
    version, maxnreg, block_cols, monkeypatch
):
    """The table was measured with 3.6."""
    monkeypatch.setattr(compiler, "VERSION", version)
    plan = table_with({"max_cols": 131072, "settings": ALONE}).find(problem(**WIDE), 0, "")
    assert (plan.maxnreg, plan.block_cols) == (maxnreg, block_cols)


def test_without_its_limit_a_row_leaves_the_parameters_out_of_registers(monkeypatch):
    settings = {"regime": "resident", "block_rows": 1, "block_cols": 2048, "num_warps": 16}
    settings |= {"prefetch_parameters": True, "maxnreg": 64}
    asked = problem(n_rows=4096, n_cols=8192, dtype=torch.bfloat16, center=False)
    for version, limit in (((3, 7), 64), ((3, 9), 0)):
        monkeypatch.setattr(compiler, "VERSION", version)
        plan = table_with({"max_cols": 8192, "settings": settings}).find(asked, 0, "")
        assert (plan.maxnreg, plan.prefetch_parameters) == (limit, limit > 0)


def test_only_clusters_that_prefetch_nothing_get_smaller_tiles(monkeypatch):
    monkeypatch.setattr(compiler, "VERSION", (3, 9))
    row = {"max_cols": 131072, "settings": {**ALONE, "num_stages": 2}}
    assert table_with(row).find(problem(**WIDE), 0, "").block_cols == 4096


@pytest.mark.parametrize(("version", "uses"), [((3, 6), True), ((3, 7), False), ((9, 9), False)])
def test_rows_of_backward_with_a_pre_bias_are_for_one_version(version, uses, monkeypatch):
    """A third column sum takes the last registers. Forward has none."""
    monkeypatch.setattr(compiler, "VERSION", version)
    settings = {"regime": "resident", "block_rows": 1, "block_cols": 4096, "num_warps": 8}
    row = {"option": "pre_bias", "max_cols": 4096, "settings": settings}
    backward = table_with({**row, "direction": "backward"})
    asked = problem("backward", 8192, 4096, torch.bfloat16, center=False, n_column_sums=2)
    assert (backward.find(asked, 0, "pre_bias") is not None) == uses
    asked = problem("forward", 8192, 4096, torch.bfloat16, center=False, pre_bias=True)
    assert table_with(row).find(asked, 0, "pre_bias") is not None


@pytest.mark.parametrize("on", [BLACKWELL, AMPERE, MI300X], ids=lambda on: on.arch)
@pytest.mark.parametrize("version", [(3, 7), (3, 9)])
def test_the_widest_tile_of_backward_is_two_where_one_spills(version, on, monkeypatch):
    monkeypatch.setattr(compiler, "VERSION", version)
    halves = version >= (3, 9) and on is not MI300X
    asked = problem("backward", 4096, 8192, torch.bfloat16, on)
    assert resident.tiling(asked) == ((4096, 2) if halves else (8192, 1))
    plan = launch.plan(asked)
    if plan.regime == "resident":
        assert plan.block_cols * plan.chunks == 8192
    assert resident.tiling(problem("forward", 4096, 8192, torch.bfloat16, on)) == (8192, 1)
