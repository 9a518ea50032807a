"""What holds for every plan, whatever the table says: it covers the row once, stays within memory, and is compiled for
no number of rows."""

import dataclasses
import random

import pytest
import torch

from rownorm import launch
from support.planning import (
    DEVICES,
    DTYPES,
    ROWS,
    WIDEST,
    WIDTHS,
    assert_sound,
    calls,
    compiled_for,
    problem,
)

ON = pytest.mark.parametrize("on", DEVICES, ids=lambda on: on.arch)
DIRECTIONS = pytest.mark.parametrize("direction", ["forward", "backward"])
NORMS = pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])


@ON
@DIRECTIONS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_width_has_a_plan(dtype, direction, on):
    for n_cols in WIDTHS:
        for n_rows in ROWS:
            asked = problem(direction, n_rows, n_cols, dtype, on)
            assert_sound(asked, launch.plan(asked))


@ON
@NORMS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_backward_of_every_width_has_a_plan_with_options(center, dtype, on):
    options = [{"n_column_sums": 3}, {"activation": "silu"}, {"residual_dtype": torch.float32}]
    options = [*options, options[0] | options[1], options[0] | options[1] | options[2]]
    options += [{**changes, "mixed": True} for changes in ({}, *options)]
    for n_cols in (*WIDTHS, 3072, 5120, 6144, 12288):
        for changes in options:
            asked = problem("backward", 32768, n_cols, dtype, on, center=center, **changes)
            plan = launch.plan(asked)
            assert_sound(asked, plan)
            if plan.regime in ("tile", "resident") and n_cols >= 64:
                assert plan.n_programs >= min(on.n_sms, asked.n_rows // plan.block_rows)


@ON
@NORMS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_forward_of_every_width_has_a_plan_with_options(center, dtype, on):
    options = [{"pre_bias": True}, {"activation": "gelu"}, {"residual_dtype": torch.bfloat16}]
    options = [*options, {"residual_dtype": torch.float32}, options[0] | options[2]]
    for n_cols in (*WIDTHS, 3072, 5120, 6144, 12288):
        for changes in options:
            asked = problem("forward", 32768, n_cols, dtype, on, center=center, **changes)
            assert_sound(asked, launch.plan(asked))


def test_any_width_has_a_plan():
    draw = random.Random(1)
    for _ in range(500):
        asked = problem(draw.choice(["forward", "backward"]), 64, draw.randint(1, WIDEST))
        assert_sound(asked, launch.plan(asked))


@ON
@DIRECTIONS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_the_number_of_rows_compiles_nothing_new(dtype, direction, on):
    """Except between looped and split, which are for many and for few rows too wide for all other regimes."""
    for n_cols in (1, 7, 64, 1000, 4096, 12288, 131072):
        plans = [launch.plan(problem(direction, n_rows, n_cols, dtype, on)) for n_rows in ROWS[1:6]]
        if {plan.regime for plan in plans} == {"looped", "split"}:
            continue
        compiled = set()
        for n_rows in ROWS[1:6]:
            compiled |= compiled_for(problem(direction, n_rows, n_cols, dtype, on))
        kernels = {name for name, *_ in compiled}
        assert len(compiled) == len(kernels), f"{n_cols} columns: {len(compiled)} compilations"


@ON
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("n_column_sums", [0, 1, 3])
def test_partial_sums_stay_within_their_budget(n_column_sums, dtype, on):
    for n_cols in WIDTHS:
        for n_rows in (1, 1000, 1 << 20):
            asked = problem("backward", n_rows, n_cols, dtype, on, n_column_sums=n_column_sums)
            plan = launch.plan(asked)
            itemsize = 8 if dtype == torch.float64 else 4
            spent = plan.n_programs * n_cols * n_column_sums * itemsize
            assert 1 <= plan.n_programs <= max(1, n_rows)
            assert spent <= 64 << 20, f"{n_rows} x {n_cols}: {plan}"


@DIRECTIONS
@pytest.mark.parametrize(
    ("n_rows", "n_cols"),
    [
        ((1 << 31) + 1, 1),
        (1 << 26, 64),
        (1 << 20, 4096),
        (70000, 40000),
        (4096, 1 << 20),
        (3, 1 << 30),
    ],
)
def test_launches_past_two_to_the_31_elements(n_rows, n_cols, direction):
    """The first dimension of a launch has less than 2^31 programs; sizes are not truncated."""
    asked = problem(direction, n_rows, n_cols)
    for one in calls(asked):
        assert 0 < one.grid < 1 << 31
        assert one.integers["n_rows"] == n_rows
        assert one.integers["n_cols"] * one.constants["DIVISIBILITY"] == n_cols
        assert min(size for size in one.integers.values() if size is not None) >= 0
    plan = launch.plan(asked)
    if direction == "backward":
        rows = calls(asked)[0].integers["rows_per_program"] * plan.n_programs
        assert rows >= n_rows


def test_no_rows_start_only_the_kernel_that_writes_zeros():
    for n_cols in (5, 4096, 200_000):
        assert all(call.grid == 0 for call in calls(problem("forward", 0, n_cols)))
        assert calls(problem("backward", 0, n_cols))[-1].grid > 0


def test_a_plan_is_pure_frozen_and_printable():
    asked = problem("backward")
    plan = launch.plan(asked)
    assert plan == launch.plan(dataclasses.replace(asked))
    assert hash(plan) == hash(launch.plan(asked))
    assert plan == dataclasses.replace(plan, reason="another")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.regime = "split"
    shown = (plan.regime, plan.block_cols, plan.num_warps, plan.n_programs, plan.source)
    for word in map(str, shown):
        assert word in str(plan)
