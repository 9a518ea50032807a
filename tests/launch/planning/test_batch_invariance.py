"""Plans of the mode ``rownorm.batch_invariant``: what a row's bits depend on is the same for every number of rows."""

import dataclasses

import pytest
import torch

from rownorm import launch
from rownorm.launch.planning import depends_on_rows, settings_of_a_row
from rownorm.launch.planning.settings import Plan
from support.planning import AMPERE, BLACKWELL, DEVICES, H200, MI300X, WIDTHS, calls, problem

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
# Around 8 tiles, the multiprocessors and clusters of each device, the rows that fill it, and the memory for messages.
ROWS = (0, 1, 2, 7, 8, 9, 33, 107, 109, 131, 133, 303, 305, 431, 433, 527, 529, 1215, 1217, 4096)
ROWS += (32768, 524288, 524289, 1 << 23, (1 << 23) + 1, 1 << 30, (1 << 31) - 1)
MORE_WIDTHS = (96, 192, 320, 384, 768, 3072, 5120, 5376, 6144, 12288, 14336, 20000, 49152, 300000)
OPTIONS = {
    "forward": (
        {},
        {"residual_dtype": BF16},
        {"residual_dtype": F32},
        {"pre_bias": True},
        {"activation": "gelu"},
        {"residual_dtype": F32, "pre_bias": True, "activation": "silu"},
    ),
    "backward": (
        {},
        {"residual_dtype": F32},
        {"n_column_sums": 3},
        {"activation": "silu"},
        {"mixed": True},
        {"residual_dtype": F32, "n_column_sums": 3, "activation": "gelu", "mixed": True},
    ),
}


def planned(asked, n_rows):
    return launch.plan(dataclasses.replace(asked, n_rows=n_rows))


@pytest.mark.parametrize("direction", OPTIONS)
@pytest.mark.parametrize("on", DEVICES, ids=lambda on: on.arch)
def test_a_row_has_the_same_settings_for_every_number_of_rows(on, direction):
    forms = [(BF16, changes) for changes in OPTIONS[direction]] + [(F32, {}), (F64, {})]
    for n_cols in (*WIDTHS[::2], *MORE_WIDTHS):
        for dtype, changes in forms:
            asked = problem(direction, 1, n_cols, dtype, on, batch_invariant=True, **changes)
            first = settings_of_a_row(planned(asked, 1))
            others = ROWS if first.regime in ("looped", "split", "grid") else ROWS[1::6]
            for n_rows in others:
                found = settings_of_a_row(planned(asked, n_rows))
                assert found == first, f"{n_rows} x {n_cols} {dtype} {changes}"


@pytest.mark.parametrize("direction", OPTIONS)
@pytest.mark.parametrize("on", [H200, BLACKWELL, AMPERE, MI300X], ids=lambda on: on.arch)
def test_the_same_kernels_with_the_same_arguments(on, direction):
    """Everything but the numbers of rows and programs, and the kernel that adds up column sums."""
    for n_cols in (1, 97, 1024, 8192, 20000, 131072, 1 << 20):
        found = set()
        for n_rows in (1, 9, 133, 4096, 1 << 20):
            asked = problem(direction, n_rows, n_cols, BF16, on, batch_invariant=True)
            found.add(
                tuple(
                    (
                        one.kernel.__name__,
                        one.num_warps,
                        str(sorted(one.constants.items(), key=str)),
                        *(one.integers[name] for name in ("n_cols", "n_parts", "part_blocks")),
                    )
                    for one in calls(asked)
                    if one.kernel.__name__ != "column_sums"
                )
            )
        assert len(found) == 1, f"{n_cols} columns"


def test_what_the_rows_decide_without_the_mode():
    """The claim of docs/numbers.md: rows that are looped or split, and a grid's with very many rows."""
    wide = problem("forward", n_cols=300000)
    assert depends_on_rows(wide)
    assert depends_on_rows(problem("backward", n_cols=32768, dtype=BF16, center=False))
    assert depends_on_rows(problem("forward", n_cols=32768, on=MI300X))
    assert not depends_on_rows(dataclasses.replace(wide, batch_invariant=True))
    for n_cols in (64, 1024, 4096, 8192, 16384):
        assert not depends_on_rows(problem("forward", n_cols=n_cols))
        assert not depends_on_rows(problem("forward", n_cols=n_cols, on=AMPERE))
    for n_cols in (64, 1024, 4096, 8192):
        assert not depends_on_rows(problem("backward", n_cols=n_cols))


def test_only_two_settings_do_not_change_the_bits_of_a_row():
    """A new field of a plan counts until somebody shows that it does not."""
    changed = {f.name for f in dataclasses.fields(Plan) if f.name in ("n_programs", "sums_tile")}
    usual = Plan("tile", 1, 1, 1)
    other = Plan("tile", 1, 1, 1, n_programs=7, sums_tile=(1, 1, 1))
    assert changed == {"n_programs", "sums_tile"}
    assert settings_of_a_row(other) == usual
    assert settings_of_a_row(dataclasses.replace(usual, part_cols=2)) != usual


def test_plans_of_rows_that_one_program_holds_are_those_without_the_mode():
    """The mode costs nothing there."""
    for direction, widest in (("forward", 16384), ("backward", 8192)):
        for n_cols in (64, 768, 1024, 4096, widest):
            usual = problem(direction, 4096, n_cols, BF16)
            invariant = dataclasses.replace(usual, batch_invariant=True)
            assert launch.plan(usual) == launch.plan(invariant)
