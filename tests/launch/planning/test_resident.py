"""The tile and resident regimes: rules, and what options change in a plan."""

import dataclasses

import pytest
import torch

from rownorm import launch
from rownorm.launch import Plan
from rownorm.launch.planning import resident
from rownorm.launch.planning.capacity import (
    loads_dy_with_h,
    next_power_of_2,
    sums_rows,
)
from support.planning import AMPERE, BLACKWELL, H200, MI300X, planner, problem, table_with


@pytest.mark.parametrize(("n", "power"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128), (0, 1)])
def test_next_power_of_2(n, power):
    assert next_power_of_2(n) == power


@pytest.mark.parametrize(
    ("n_cols", "expected"),
    [(104, (128, 1)), (5120, (1024, 5)), (6144, (2048, 3)), (8000, (8192, 1))],
)
def test_tiles_cover_a_row_with_few_idle_lanes(n_cols, expected):
    assert resident.tiling(problem(n_cols=n_cols, on=BLACKWELL)) == expected
    plan = launch.plan(problem(n_cols=n_cols, on=BLACKWELL))
    assert (plan.block_cols, plan.chunks) == expected


@pytest.mark.parametrize(("n_cols", "block_rows"), [(256, 4), (512, 2)])
def test_backward_of_short_rows_runs_in_one_warp(n_cols, block_rows):
    asked = problem("backward", 4096, n_cols, torch.bfloat16, BLACKWELL)
    plan = launch.plan(asked)
    assert (plan.regime, plan.block_rows, plan.num_warps) == ("tile", block_rows, 1)
    assert "one warp" in plan.reason
    twice = dataclasses.replace(asked, n_cols=2048)
    assert launch.plan(twice).num_warps > 1


@pytest.mark.parametrize("on", [AMPERE, BLACKWELL], ids=lambda on: on.arch)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_tiles_of_narrow_rows_of_odd_width_are_half_as_large(direction, dtype, on):
    """A thread has one column of each of its rows, so it has many rows; each takes registers (experiment SF-16)."""
    for odd, aligned in ((1, 2), (3, 4), (7, 8), (9, 16), (31, 32)):
        few, many = (launch.plan(problem(direction, 32768, n, dtype, on)) for n in (odd, aligned))
        elements = [plan.block_rows * plan.block_cols for plan in (few, many)]
        assert 2 * elements[0] == elements[1]
        assert few.num_warps == many.num_warps
        assert "registers" in few.reason
        assert "registers" not in many.reason.removeprefix(
            f"a row of {aligned} columns fits in the registers"
        )


@pytest.mark.parametrize("n_cols", [31, 64, 256, 4096])
def test_rules_limit_registers_for_nvidias_compiler(n_cols):
    """Else it spills to fit one more program on an SM: in vain in backward, which starts none there."""

    def limit(direction, dtype=torch.float32, on=BLACKWELL):
        return launch.plan(problem(direction, 4096, n_cols, dtype, on)).maxnreg

    assert limit("backward") == limit("backward", torch.float64) == 255
    assert limit("forward") == 0
    assert limit("forward", torch.float64) == (255 if n_cols < 1024 else 0)
    assert limit("backward", on=MI300X) == limit("forward", torch.float64, MI300X) == 0
    assert limit("backward", on=H200) == 0  # the table's


@pytest.mark.parametrize("on", [H200, BLACKWELL, MI300X], ids=lambda on: on.arch)
@pytest.mark.parametrize("n_cols", [516, 768, 1024, 2000, 4096, 8192])
@pytest.mark.parametrize("residual", [None, torch.bfloat16])
def test_rows_of_16_and_32_bits_have_one_layout(residual, n_cols, on):
    """Where a thread has more than 4 elements of a tile, it would load 8 columns of one tensor and 4 of the other."""
    options = {"residual_dtype": residual, "mixed": True}
    plan = launch.plan(problem("backward", 4096, n_cols, torch.float32, on, **options))
    assert plan.regime == "resident"
    assert "one layout" in plan.reason
    assert plan.block_cols == 4 * plan.num_warps * on.warp_size


@pytest.mark.parametrize("n_cols", [300, 768, 2000, 8192, 65536])
def test_beside_a_32_bit_residual_any_mixture_has_the_settings_that_were_tuned(n_cols):
    """Except ``load_dy_with_h``: a 32-bit dy takes more registers."""
    tuned = problem("backward", 4096, n_cols, torch.bfloat16, residual_dtype=torch.float32)
    wider = dataclasses.replace(tuned, dtype=torch.float32)
    assert str(launch.plan(dataclasses.replace(wider, mixed=True))) == str(launch.plan(tuned))
    assert str(launch.plan(wider)) != str(launch.plan(tuned))


def test_short_and_wide_rows_of_16_and_32_bits_have_the_plans_of_32_bits():
    for n_cols in (64, 256, 512, 8193, 65536):
        asked = problem("backward", 4096, n_cols, torch.float32)
        assert launch.plan(dataclasses.replace(asked, mixed=True)) == launch.plan(asked)


def test_few_tiles_are_for_one_program():
    """Then no second kernel has to add up its column sums."""
    for n_rows, n_programs in ((8, 1), (9, 9), (1000, BLACKWELL.n_sms)):
        asked = problem("backward", n_rows, 8192, torch.bfloat16, BLACKWELL)
        plan = launch.plan(asked)
        assert (plan.block_rows, plan.n_programs) == (1, n_programs)


def test_the_rows_of_a_tile_are_summed_where_one_thread_has_them():
    wide = Plan("tile", 4, 1024, 4)
    assert sums_rows(wide, problem("backward", 100, 1024, torch.bfloat16))
    assert sums_rows(wide, problem("backward", 100, 1024, torch.float32))
    for other in (Plan("tile", 8, 512, 4), Plan("resident", 1, 1024, 4)):
        assert not sums_rows(other, problem("backward", 100, 512, torch.bfloat16))


def test_dy_is_loaded_with_h_where_a_thread_has_registers_for_it():
    asked = problem("backward", 100, 4096, torch.bfloat16)
    one_row = Plan("resident", 1, 1024, 4, chunks=4)
    assert loads_dy_with_h(one_row, asked)
    assert not loads_dy_with_h(dataclasses.replace(one_row, chunks=5), asked)
    assert not loads_dy_with_h(one_row, dataclasses.replace(asked, n_column_sums=3))
    assert not loads_dy_with_h(one_row, dataclasses.replace(asked, dtype=torch.float32))
    one = dataclasses.replace(one_row, chunks=1)
    assert loads_dy_with_h(one, dataclasses.replace(asked, dtype=torch.float32))
    assert not loads_dy_with_h(one, dataclasses.replace(asked, dtype=torch.float64))
    # A third sum takes no registers where one sum serves all rows of a tile.
    rows = Plan("tile", 4, 1024, 4, chunks=1)
    assert loads_dy_with_h(rows, dataclasses.replace(asked, n_cols=1024, n_column_sums=3))


def test_parameters_are_not_prefetched_beside_a_residual_of_wide_rows():
    plain = Plan("resident", 1, 1024, 4, prefetch_parameters=True)
    for n_cols, prefetches in ((4096, True), (5120, False)):
        asked = problem(n_cols=n_cols, residual_dtype=torch.bfloat16)
        assert resident.with_residual(plain, asked).prefetch_parameters == prefetches


def test_an_activation_of_centered_rows_takes_more_programs():
    """Two rows of many elements per thread become one row in twice as many programs."""
    two_rows = Plan("tile", 2, 4096, 8)
    asked = problem("backward", 32768, 4096, torch.bfloat16, activation="silu")
    plan = resident.with_options(two_rows, asked)
    assert (plan.regime, plan.block_rows, plan.programs_per_sm) == ("resident", 1, 2)
    assert "activation" in plan.reason
    assert resident.with_options(two_rows, dataclasses.replace(asked, center=False)) == two_rows
    assert resident.with_options(two_rows, dataclasses.replace(asked, activation=None)) == two_rows


@pytest.mark.parametrize(
    ("plain", "changes", "expected"),
    [
        # Several rows: fewer of them.
        (Plan("tile", 8, 512, 4), {"n_cols": 512}, {"regime": "tile", "block_rows": 4}),
        (
            Plan("tile", 8, 256, 4),
            {"n_cols": 255, "dtype": torch.float32},
            {"block_rows": 4, "maxnreg": 255},
        ),
        # One row: more warps, as long as a thread has 255 registers.
        (Plan("resident", 1, 4096, 4), {"n_cols": 4096}, {"num_warps": 8}),
        (Plan("resident", 1, 2048, 4), {"n_cols": 2048}, {}),
    ],
)
def test_options_take_registers_from_rows(plain, changes, expected):
    asked = problem("backward", 4096, activation="silu", n_column_sums=3, **changes)
    plan = resident.with_options(plain, asked)
    assert plan == dataclasses.replace(plain, **expected)
    assert bool(plan.reason) == bool(expected)


def test_an_activation_computes_few_idle_lanes():
    plain = Plan("resident", 1, 8192, 8)
    asked = problem("backward", 4096, 5120, torch.bfloat16, activation="silu")
    plan = resident.with_options(plain, asked)
    assert plan.block_cols == 1024
    assert resident.with_options(plain, dataclasses.replace(asked, n_cols=8000)).block_cols == 8192


def test_options_that_leave_no_registers_take_a_cluster():
    changes = {"activation": "gelu", "n_column_sums": 3}
    asked = problem("backward", 4096, 8192, torch.bfloat16, BLACKWELL)
    assert launch.plan(asked).regime == "resident"
    plan = launch.plan(dataclasses.replace(asked, **changes))
    assert (plan.regime, plan.cluster_size) == ("cluster", 2)
    # Where there are no clusters, programs all over the GPU share the row.
    elsewhere = launch.plan(dataclasses.replace(asked, device=AMPERE, **changes))
    assert elsewhere.regime == "grid"


def test_a_tile_of_the_table_is_no_wider_than_the_row(monkeypatch):
    settings = {"regime": "resident", "block_rows": 1, "block_cols": 4096, "num_warps": 4}
    rows = table_with({"max_cols": 4096, "settings": settings})
    monkeypatch.setattr(planner, "table_of", lambda arch: rows)
    for n_cols, block_cols in ((4096, 4096), (3000, 4096), (2048, 2048), (104, 128)):
        asked = problem(n_cols=n_cols, on=H200, center=False)
        assert launch.plan(asked).block_cols == block_cols


def test_narrow_accesses_take_the_registers_of_half_the_rows_with_every_option():
    """Where none was measured: on sm_90 the table's tiles do not spill."""

    def rows(on, n_cols):
        asked = problem("backward", 32768, n_cols, torch.bfloat16, on, activation="gelu")
        return launch.plan(dataclasses.replace(asked, n_column_sums=3)).block_rows

    for on in (AMPERE, BLACKWELL):
        assert (rows(on, 198), rows(on, 256)) == (2, 4)
        assert (rows(on, 396), rows(on, 512)) == (1, 2)
    assert rows(MI300X, 198) == rows(MI300X, 256)


@pytest.mark.parametrize(("n_cols", "regime"), [(7168, "resident"), (8192, "cluster")])
def test_threads_with_128_registers_have_room_for_fewer_elements(n_cols, regime):
    """16 warps, with every option beside an fp32 residual: 16 elements for each thread spill, 14 do not."""
    asked = problem("backward", 32768, n_cols, torch.bfloat16, activation="gelu_tanh")
    asked = dataclasses.replace(asked, n_column_sums=3, residual_dtype=torch.float32)
    assert launch.plan(asked).regime == regime
