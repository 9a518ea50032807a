"""The looped and split regimes: rows in chunks, and when a row that fits in registers is reloaded all the same."""

import dataclasses

import pytest
import torch

from rownorm import launch
from rownorm.launch import force
from support.planning import AMPERE, BLACKWELL, MI300X, ROWS, planner, problem, table_with

LOOPED = {"regime": "looped", "block_rows": 1, "block_cols": 4096, "num_warps": 16}


@pytest.fixture
def looped_row(monkeypatch):
    """The table has one row, looped, for RMSNorm forward of up to 32768 columns."""
    rows = table_with({"max_cols": 32768, "settings": LOOPED})
    monkeypatch.setattr(planner, "table_of", lambda arch: rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("on", [BLACKWELL, MI300X], ids=lambda on: on.arch)
def test_the_widest_rows_are_looped_or_split(on, dtype):
    for direction in ("forward", "backward"):
        assert launch.plan(problem(direction, 4096, 1 << 24, dtype, on)).regime == "looped"
        few = launch.plan(problem(direction, 4, 1 << 24, dtype, on))
        assert few.regime == "split"
        assert "few rows" in few.reason


def test_narrow_rows_are_not_split():
    for n_rows in (1, 4096):
        asked = problem("forward", n_rows, 16384, torch.float64, AMPERE)
        assert launch.plan(asked).regime == "looped"


@pytest.mark.usefixtures("looped_row")
def test_a_kernel_knows_few_full_chunks():
    """They are loaded at once, a pre_bias with them, and never split."""
    even = problem(n_rows=32768, n_cols=8192, dtype=torch.bfloat16, center=False)
    plan = launch.plan(even)
    assert (plan.regime, plan.chunks) == ("looped", 2)
    assert launch.plan(dataclasses.replace(even, pre_bias=True)) == plan
    for n_cols in (8000, 5 * 4096):
        other = launch.plan(dataclasses.replace(even, n_cols=n_cols))
        assert (other.regime, other.chunks) == ("looped", 0)
    for n_rows in ROWS[1:-1]:
        wide = launch.plan(dataclasses.replace(even, n_cols=16384, n_rows=n_rows))
        assert (wide.regime, wide.chunks) == ("looped", 4)


@pytest.mark.usefixtures("looped_row")
def test_a_row_that_fits_in_registers_is_reloaded_only_if_nothing_else_is():
    plain = problem(n_rows=32768, n_cols=8000, dtype=torch.bfloat16, center=False)
    assert launch.plan(plain).regime == "looped"
    for dtype in (torch.bfloat16, torch.float32):
        changes = {"residual_dtype": dtype}
        assert launch.plan(dataclasses.replace(plain, **changes)).regime == "resident"
        full = dataclasses.replace(plain, n_cols=8192, **changes)
        assert launch.plan(full).regime == "resident"
        wide = dataclasses.replace(plain, n_cols=20000, **changes)
        assert launch.plan(wide).regime == "looped"
    plan = launch.plan(dataclasses.replace(plain, pre_bias=True))
    assert (plan.regime, plan.prefetch_parameters) == ("resident", True)
    assert launch.plan(dataclasses.replace(plain, n_cols=20000, pre_bias=True)).regime == "looped"


@pytest.mark.parametrize("on", [AMPERE, MI300X], ids=lambda on: on.arch)
def test_a_pre_bias_leaves_looped_plans_as_they_are(on):
    asked = problem(n_rows=1000, n_cols=16384, dtype=torch.float64, on=on)
    plan = launch.plan(asked)
    assert plan.regime == "looped"
    assert launch.plan(dataclasses.replace(asked, pre_bias=True)) == plan


@pytest.mark.parametrize(
    ("part_cols", "message"), [(16, "512 parts"), (24, "must be a multiple of block_cols, 16")]
)
def test_bad_parts_are_refused(part_cols, message):
    with (
        force(regime="split", block_cols=16, part_cols=part_cols),
        pytest.raises(ValueError, match=message),
    ):
        launch.plan(problem(n_cols=10_000))
