"""Facts of the present sm_90 table. Tuning it anew may change this file, but no other test of the planner."""

import collections
import dataclasses
import re
from pathlib import Path

import pytest
import torch

from rownorm import launch
from rownorm.launch.planning import compiler, files, table
from rownorm.program import ACTIVATIONS
from support.planning import H200, assert_sound, calls, planner, problem

TABLE = files.table_of("sm_90")
(SOURCE,) = TABLE.sources
ROOT = Path(__file__).parents[3]
EXPERIMENTS = ROOT / "docs" / "experiments"
SPECIAL = [row for row in TABLE.entries if row.residual or row.option]
DTYPES = {0: None, 2: torch.bfloat16, 4: torch.float32}
NORMS = pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
DIRECTIONS = pytest.mark.parametrize("direction", ["forward", "backward"])
# LayerNorm of 32768 to 65536 columns of 16 bits, with the Triton that is installed.
WIDE_BACKWARD = "cluster" if compiler.VERSION >= (3, 9) else "grid"
WIDE = {"n_rows": 4096, "n_cols": 65536, "dtype": torch.bfloat16}


def problem_of(row, n_cols=None):
    """The problem that a row is for."""
    forward = row.direction == "forward"
    sums = 0 if forward else 1 + row.center + (row.option == "pre_bias")
    activation = row.option if row.option in ACTIVATIONS else None
    return problem(
        row.direction,
        1024,
        n_cols or row.max_cols,
        DTYPES[row.itemsize],
        center=row.center,
        residual_dtype=DTYPES[row.residual],
        activation="silu" if row.option == "activation" else activation,
        pre_bias=forward and row.option == "pre_bias",
        n_column_sums=sums,
    )


def narrower_than(row):
    """The next smaller width of a row that its problems could take."""
    widths = [other.max_cols for other in TABLE.entries if other.kind == row.kind]
    return max((width for width in widths if width < row.max_cols), default=0)


def test_every_row_says_why_it_has_its_settings():
    assert all(row.reason for row in TABLE.entries)


def test_every_row_has_a_runner_up():
    """But those for Triton 3.9, whose reasons name what was second."""
    without = [row for row in TABLE.entries if row.runner_up is None]
    assert all(row.triton == ">=3.9" and "had" in row.reason for row in without)
    assert len(without) <= 4  # of versions before 3.9, none is in use


def test_the_reason_of_8192_columns_backward_has_figures_of_other_settings():
    for center, figure in ((False, 4266), (True, 4241)):
        asked = problem("backward", 4096, 8192, torch.bfloat16, center=center, n_column_sums=1)
        plan = launch.plan(asked)
        assert re.fullmatch(r"cluster: .*, 4\d{3} GB/s(, level)?", plan.second)
        assert f"with 8 warps and 5 stages {figure}, not compared" in plan.reason


@pytest.fixture
def of_its_compiler(monkeypatch):
    monkeypatch.setattr(compiler, "VERSION", SOURCE.version)


@pytest.mark.usefixtures("of_its_compiler")
def test_every_row_is_the_plan_of_its_width():
    taken = collections.Counter()
    for row in TABLE.entries:
        asked = problem_of(row)
        plan = launch.plan(asked)
        assert_sound(asked, plan)
        own = {name: getattr(plan, name) for name in row.settings}
        if plan.regime == "grid":  # the limit of registers follows from the programs
            own.pop("maxnreg", None)
        # Of two rows for a width, the first is for the width itself.
        taken[row.order] += own == dict(row.settings)
    assert all(taken.values()), [order for order, n in taken.items() if not n]


@pytest.mark.usefixtures("of_its_compiler")
def test_a_special_row_is_there_only_if_it_changes_a_plan(monkeypatch):
    """Otherwise the plain norm's plan, adapted, is the same."""
    same = []
    for row in SPECIAL:
        low, top = narrower_than(row), row.max_cols
        asked = [
            problem_of(row, n) for n in (top, top - 1, low + 8, (low + top) // 16 * 8, low + 1)
        ]
        asked += [dataclasses.replace(one, n_column_sums=3) for one in asked if one.n_column_sums]
        asked += [dataclasses.replace(one, activation="gelu") for one in asked if one.activation]
        planned = [launch.plan(one) for one in asked]
        rows = [each for each in TABLE.entries if each.kind[:3] == row.kind[:3] and each is not row]
        rest = table.Table(SOURCE._replace(entries=tuple(rows)))
        with monkeypatch.context() as patch:
            patch.setattr(planner, "table_of", lambda arch, rest=rest: rest)
            without = [launch.plan(one) for one in asked]
        if [dataclasses.replace(p, source="") for p in planned] == [
            dataclasses.replace(p, source="") for p in without
        ]:
            same.append(str(row))
    assert not same


def test_every_special_row_names_its_experiment():
    assert not [str(row) for row in SPECIAL if not re.fullmatch(r"[A-Z]{2,3}-\d\d", row.experiment)]


def test_every_experiment_that_is_named_exists():
    """By the table, or by a comment in the code: ``experiment XX-01``, ``experiments XX-01, XX-02``."""
    if not EXPERIMENTS.is_dir():
        pytest.skip("docs/experiments is not in this checkout")
    known = set()
    for page in EXPERIMENTS.glob("*.md"):
        known |= set(re.findall(r"^## ([A-Z]{2,3}-\d\d):", page.read_text(), re.M))
    named = {row.experiment for row in TABLE.entries if row.experiment}
    for row in TABLE.entries:
        named |= set(re.findall(r"[A-Z]{2,3}-\d\d", row.reason))
    for file in (ROOT / "src").rglob("*.py"):
        for ids in re.findall(
            r"experiments? ((?:[A-Z]{2,3}-\d\d(?:, | and )?)+)", file.read_text()
        ):
            named |= set(re.findall(r"[A-Z]{2,3}-\d\d", ids))
    assert len(named) > 10
    assert named <= known, f"not in docs/experiments: {', '.join(sorted(named - known))}"


@pytest.mark.parametrize(
    ("n_rows", "n_cols", "forward", "backward"),
    [
        (4096, 64, "tile", "tile"),
        (4096, 2048, "resident", "tile"),
        (4096, 4096, "resident", "tile"),
        (1, 4096, "resident", "tile"),
        (4096, 16384, "resident", "cluster"),
        (4096, 32768, "looped", WIDE_BACKWARD),
        (4096, 65536, "cluster", WIDE_BACKWARD),
        (2, 131072, "cluster", "grid"),
        (4096, 1 << 20, "looped", "grid"),
        (2, 1 << 20, "split", "grid"),
        (4096, 1 << 21, "looped", "looped"),
        (2, 1 << 21, "split", "split"),
    ],
)
def test_regimes_by_shape(n_rows, n_cols, forward, backward):
    assert launch.plan(problem("forward", n_rows, n_cols)).regime == forward
    assert launch.plan(problem("backward", n_rows, n_cols)).regime == backward


@pytest.mark.parametrize(("n_cols", "regime"), [(8192, "resident"), (16384, "grid")])
def test_a_third_sum_takes_no_larger_cluster(n_cols, regime):
    plain = launch.plan(problem("backward", 4096, n_cols, torch.bfloat16))
    plan = launch.plan(problem("backward", 4096, n_cols, torch.bfloat16, n_column_sums=3))
    if SOURCE.version != compiler.VERSION:  # another compiler has no rows for it
        assert (plain.regime, plan.regime) == ("cluster", regime)
    both = problem("backward", 4096, n_cols, torch.bfloat16, n_column_sums=3, activation="silu")
    assert launch.plan(both).regime == "grid"


def test_an_activation_of_centered_rows_takes_more_programs():
    plain = launch.plan(problem("backward", 32768, 4096, torch.bfloat16))
    plan = launch.plan(problem("backward", 32768, 4096, torch.bfloat16, activation="silu"))
    assert (plain.regime, plain.block_rows, plan.regime) == ("tile", 2, "cluster")
    assert plan.programs_per_sm > plain.programs_per_sm
    assert plan.programs_per_sm * plan.num_warps * 32 <= 512  # 128 registers for each thread


def test_options_take_more_programs_per_row():
    changes = {"activation": "gelu", "n_column_sums": 3}
    plain = launch.plan(problem("backward", 4096, 8192, torch.float32))
    plan = launch.plan(problem("backward", 4096, 8192, torch.float32, **changes))
    assert (plain.regime, plan.regime) == ("resident", "cluster")
    assert plan.cluster_size > 1
    without = H200._replace(clusters=())
    elsewhere = launch.plan(problem("backward", 4096, 8192, torch.float32, on=without, **changes))
    assert elsewhere.regime == "grid"


@pytest.mark.parametrize(("direction", "n_cols"), [("forward", 65536), ("backward", 12288)])
def test_clusters_take_wide_rows(direction, n_cols):
    wide = WIDE | {"n_cols": n_cols}
    plan = launch.plan(problem(direction, **wide))
    assert plan.regime == "cluster"
    if direction == "forward" and plan.num_stages == 1:
        assert plan.n_programs == WIDE["n_rows"]
    few = launch.plan(problem(direction, **(wide | {"n_rows": 2})))
    assert few == dataclasses.replace(plan, n_programs=2)
    without = H200._replace(clusters=())
    elsewhere = launch.plan(problem(direction, **wide, on=without))
    assert elsewhere.regime == {"forward": "looped", "backward": "grid"}[direction]


@NORMS
def test_a_residual_takes_more_threads_per_row(center):
    plain = launch.plan(problem(**WIDE, center=True))
    plan = launch.plan(problem(**WIDE, center=center, residual_dtype=torch.bfloat16))
    assert (plan.regime, plan.num_stages) == ("cluster", 2)
    # 4 bytes per element instead of 2, and the next row.
    assert plan.cluster_size * plan.num_warps == 2 * plain.cluster_size * plain.num_warps
    for n_cols, regime in ((262144, "cluster"), (524288, "looped")):
        wide = problem("forward", 4096, n_cols, torch.float32, center=center)
        plan = launch.plan(dataclasses.replace(wide, residual_dtype=torch.float32))
        assert (plan.regime, plan.num_stages) == (regime, 1)


@DIRECTIONS
@NORMS
def test_the_table_has_plans_for_residuals_of_twice_the_width(direction, center):
    for n_cols in (104, 1000, 4096, 65536, 262144):
        asked = problem(direction, 4096, n_cols, torch.bfloat16, center=center)
        plan = launch.plan(dataclasses.replace(asked, residual_dtype=torch.float32))
        assert "4-byte residual" in plan.reason
        # Every thread has 16 bytes of the wider rows: no element goes through shared memory on its way to memory.
        if 128 < n_cols < 16384:
            assert plan.block_cols <= 4 * 32 * plan.num_warps


@pytest.mark.parametrize(
    ("direction", "center", "itemsize", "widest"),
    [
        ("forward", False, 2, 16384),
        ("forward", True, 2, 16384),
        ("backward", False, 2, 16384),
        ("backward", True, 2, 16384),
        ("backward", False, 4, 32768),
        ("backward", True, 4, 65536),
    ],
)
def test_the_table_has_plans_for_activations(direction, center, itemsize, widest):
    kind = (direction, center, itemsize, 0)
    own = [row for row in TABLE.entries if row.kind == kind and row.option == "activation"]
    assert max(row.max_cols for row in own) == widest
    for row in own:
        # With a pre_bias as well, the plain norm's plan is adapted.
        busy = problem_of(row)
        sums = busy.n_column_sums and busy.n_column_sums + 1
        both = dataclasses.replace(busy, pre_bias=not sums, n_column_sums=sums)
        assert both.option == "activation+pre_bias"
        assert TABLE.find(both, 0, both.option) is None
        assert "tuned for activation" not in launch.plan(both).reason
    beyond = launch.plan(problem_of(own[-1], max(65536, 2 * widest)))
    wide_backward = WIDE_BACKWARD if (center, itemsize) == (True, 2) else "grid"
    assert beyond.regime == {"forward": "cluster", "backward": wide_backward}[direction]


def test_pre_bias_rows_are_for_some_widths():
    rows = [row for row in TABLE.entries if row.option == "pre_bias"]
    assert {row.itemsize for row in rows} == {2, 4}
    assert {row.direction for row in rows} == {"forward", "backward"}


def test_parameters_are_not_prefetched_beside_a_residual():
    asked = problem(n_rows=32768, n_cols=5120, dtype=torch.bfloat16, center=False)
    assert launch.plan(asked).prefetch_parameters
    beside = dataclasses.replace(asked, residual_dtype=torch.bfloat16)
    assert not launch.plan(beside).prefetch_parameters


@pytest.mark.usefixtures("of_its_compiler")
def test_a_pre_bias_lifts_the_limit_of_registers():
    asked = problem(**WIDE, center=False)
    assert launch.plan(asked).maxnreg
    assert not launch.plan(dataclasses.replace(asked, pre_bias=True)).maxnreg


def test_a_pre_bias_takes_a_smaller_tile():
    asked = problem(n_rows=1024, n_cols=262144, dtype=torch.float32, center=False)
    plain = launch.plan(asked)
    plan = launch.plan(dataclasses.replace(asked, pre_bias=True))
    assert plan.block_cols == plain.block_cols // 2
    assert plan.block_cols == 4 * 32 * plan.num_warps  # 16 bytes for each thread


@pytest.mark.parametrize(
    ("center", "activation", "dtype", "n_cols"),
    [
        (False, None, torch.float16, 8192),
        (True, None, torch.float16, 12288),
        (True, None, torch.float32, 12288),
        (False, "silu", torch.float16, 16384),
        (True, "silu", torch.float16, 4096),
        (True, "gelu", torch.float16, 16384),
    ],
)
def test_rows_that_do_not_fill_their_chunks_have_another_plan(center, activation, dtype, n_cols):
    def regime(n_cols):
        asked = problem(n_rows=4096, n_cols=n_cols, dtype=dtype, center=center)
        return launch.plan(dataclasses.replace(asked, activation=activation)).regime

    assert regime(n_cols) == "looped"
    assert regime(n_cols - 8) == "resident"


def test_a_row_is_reloaded_only_if_nothing_else_is_reloaded():
    plain = problem(n_rows=32768, n_cols=8192, dtype=torch.bfloat16, center=False)
    plan = launch.plan(plain)
    assert (plan.regime, plan.chunks * plan.block_cols) == ("looped", 8192)
    assert launch.plan(dataclasses.replace(plain, pre_bias=True)) == plan
    for dtype in (torch.bfloat16, torch.float32):
        beside = dataclasses.replace(plain, residual_dtype=dtype)
        assert launch.plan(beside).regime == "resident"
    odd = dataclasses.replace(plain, n_cols=8000, pre_bias=True)
    assert launch.plan(odd).regime == "resident"


@NORMS
def test_wide_rows_that_one_program_loads_at_once_are_not_split(center):
    for n_rows in (1, 7, 1000, 1 << 20):
        plan = launch.plan(problem("forward", n_rows, 32768, torch.bfloat16, center=center))
        assert plan.regime == "looped"
        assert plan.chunks


@pytest.mark.parametrize(
    ("evict_first", "center", "n_cols", "changes"),
    [
        (True, False, 4096, {}),  # parameters are prefetched
        (False, True, 4096, {}),
        (False, False, 8192, {}),  # reloaded from L1
        (True, True, 32768, {}),  # reloaded from L2
        (False, True, 65536, {}),
        (True, True, 262144, {}),  # the next row is prefetched
        (False, True, 262144, {"residual_dtype": torch.float32}),
    ],
)
def test_results_stay_in_l2_for_the_next_kernel_where_nothing_else_needs_it(
    evict_first, center, n_cols, changes
):
    asked = problem(n_rows=4096, n_cols=n_cols, center=center, **changes)
    assert calls(asked)[-1].constants["EVICT_FIRST"] is evict_first


@pytest.mark.parametrize(
    ("fast_rstd", "n_cols", "changes"),
    [
        (True, 4096, {}),  # as the table has it
        (False, 2048, {}),
        (False, 131072, {}),
        (True, 131072, {"residual_dtype": torch.float32}),
        (False, 131072, {"residual_dtype": torch.float32, "activation": "silu"}),
    ],
)
def test_rstd_is_fast_where_registers_are_few(fast_rstd, n_cols, changes):
    asked = problem(n_rows=4096, n_cols=n_cols, center=False, **changes)
    assert calls(asked)[-1].constants["FAST_RSTD"] is fast_rstd
