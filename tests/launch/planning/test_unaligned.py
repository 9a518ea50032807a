"""Rules for rows that are not aligned: which rows these are, and their plans."""

import dataclasses

import pytest
import torch

from rownorm import launch
from rownorm.launch.planning.capacity import (
    SM_REGISTERS,
    aligned_cols,
    is_unaligned,
    sums_rows,
)
from support.planning import AMPERE, BLACKWELL, H200, MI300X, problem

BF16 = torch.bfloat16
every_nvidia = pytest.mark.parametrize("on", [H200, BLACKWELL, AMPERE], ids=lambda on: on.arch)


@pytest.mark.parametrize(
    ("dtype", "n_cols", "cols", "unaligned"),
    [
        (BF16, 4096, 8, False),
        (BF16, 4100, 4, False),  # accesses of 8 bytes: as fast with the table's plans
        (BF16, 1004, 4, True),
        (BF16, 60, 4, False),  # tiles of many rows
        (BF16, 4098, 2, True),
        (BF16, 34, 2, True),
        (BF16, 30, 2, False),  # tiles of many rows
        (BF16, 4097, 1, True),
        (BF16, 33, 1, True),
        (BF16, 31, 1, False),  # tiles of many rows
        (BF16, 16385, 1, False),  # a cluster
        (torch.float32, 4098, 2, False),
        (torch.float32, 1002, 2, False),
        (torch.float32, 4097, 1, True),
        (torch.float32, 399, 1, False),
        (torch.float64, 4097, 1, False),
    ],
)
def test_which_rows_are_not_aligned(dtype, n_cols, cols, unaligned):
    asked = problem(n_cols=n_cols, dtype=dtype)
    assert aligned_cols(asked) == cols
    assert is_unaligned(asked) == unaligned
    assert not is_unaligned(dataclasses.replace(asked, device=MI300X))
    assert not is_unaligned(dataclasses.replace(asked, gate_dtype=dtype))
    assert not is_unaligned(dataclasses.replace(asked, samples="rows"))


@pytest.mark.parametrize(
    ("n_cols", "plain", "with_more"),
    [(301, True, True), (302, True, False), (402, True, True), (604, True, False)],
)
def test_in_backward_a_residual_or_an_activation_takes_the_registers_of_short_rows(
    n_cols, plain, with_more
):
    asked = problem("backward", n_cols=n_cols, dtype=BF16)
    assert is_unaligned(asked) == plain
    assert is_unaligned(dataclasses.replace(asked, residual_dtype=BF16)) == with_more
    assert is_unaligned(dataclasses.replace(asked, activation="gelu")) == with_more
    assert is_unaligned(dataclasses.replace(asked, direction="forward", residual_dtype=BF16))


@every_nvidia
@pytest.mark.parametrize("n_cols", [513, 642, 700, 863, 1004, 3002, 5729, 8191])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_all_threads_share_a_wide_row(direction, n_cols, on):
    asked = problem(direction, 32768, n_cols, BF16, on)
    if not is_unaligned(asked):
        assert (direction, aligned_cols(asked)) == ("backward", 4)
        return
    plan = launch.plan(asked)
    assert (plan.regime, plan.block_rows) == ("resident", 1)
    threads = 32 * plan.num_warps
    assert plan.block_cols in (threads * aligned_cols(asked), 2 * threads)
    assert plan.chunks * plan.block_cols // threads <= (28 if direction == "forward" else 14)
    if direction == "backward":
        # Accesses of 2 bytes cannot be copied to shared memory, so nothing is in flight there.
        assert plan.num_stages == (3 if n_cols % 2 == 0 else 1)


@every_nvidia
@pytest.mark.parametrize("center", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("n_cols", [33, 61, 66, 100, 157, 262, 301, 338, 396, 511, 540, 638])
def test_a_program_has_several_short_rows_in_forward(n_cols, center, on):
    """At least 1000 bytes of a program: with fewer, the GPU starts programs more slowly than memory could serve."""
    for residual_dtype in (None, torch.float32):
        asked = problem(
            "forward", 32768, n_cols, BF16, on, center=center, residual_dtype=residual_dtype
        )
        plan = launch.plan(asked)
        lanes = plan.block_cols // aligned_cols(asked)
        assert (plan.regime, plan.num_warps) == ("tile", 4)
        assert lanes in (16, 32)
        assert plan.block_rows * lanes >= 128  # no thread is idle
        assert plan.block_rows * n_cols * 2 >= 1000
        assert plan.block_rows * plan.chunks * plan.block_cols <= 128 * 40


@every_nvidia
@pytest.mark.parametrize("center", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("n_cols", [33, 66, 100, 157, 198, 262, 300, 338, 396, 402, 540, 638])
def test_backward_has_registers_for_all_its_programs(n_cols, center, on):
    asked = problem("backward", 32768, n_cols, BF16, on, center=center)
    plan = launch.plan(asked)
    threads = 32 * plan.num_warps
    assert is_unaligned(asked)
    assert plan.programs_per_sm * threads * plan.maxnreg <= SM_REGISTERS
    assert plan.block_rows * plan.chunks * plan.block_cols <= 40 * threads
    # One sum for all rows where each thread has the same columns of each.
    is_shared = plan.block_cols == threads * aligned_cols(asked)
    assert sums_rows(plan, asked) == (plan.block_rows > 1 and is_shared)
    # A chunk is masked only where no other covers the end of the row.
    assert (plan.chunks - 1) * plan.block_cols < n_cols <= plan.chunks * plan.block_cols


def test_tiles_have_fewer_rows_where_none_was_measured():
    """Beside a residual, tiles that fit on sm_90 spill on sm_80 and sm_100."""
    rows = [
        launch.plan(problem("backward", 32768, 33, BF16, on, residual_dtype=BF16)).block_rows
        for on in (H200, BLACKWELL, AMPERE)
    ]
    assert rows == [4, 2, 2]
