"""Plans: pure, printable, within their budget, and free of the number of rows where they must
be."""

import dataclasses
import random

import pytest
import torch
from helpers import DTYPES, REGIMES

from rownorm import launch
from rownorm.launch import Device, Plan, Problem, force, options, planner, rules
from rownorm.launch.problem import INTERPRETER
from rownorm.launch.resources import TARGETS
from rownorm.program import Program

H200 = TARGETS["sm_90"].device
MI300X = Device("AMD MI300X", "gfx942", 304, 64)
DEVICES = pytest.mark.parametrize("on", [H200, MI300X, INTERPRETER], ids=lambda on: on.arch)
DIRECTIONS = pytest.mark.parametrize("direction", ["forward", "backward"])
WIDEST = 1 << 20
WIDTHS = sorted({max(1, (1 << k) + d) for k in range(21) for d in (-1, 0, 1)} - {WIDEST + 1})
ROWS = (0, 1, 2, 7, 128, 1000, 32768, 1 << 20, (1 << 31) + 1)


def problem(direction="forward", n_rows=100, n_cols=1000, dtype=torch.float16, on=H200, **changes):
    sums = 2 if direction == "backward" else 0
    plain = Problem(direction, n_rows, n_cols, dtype, None, True, sums, on)
    return dataclasses.replace(plain, **changes)


def calls(asked: Problem):
    program = Program(asked.center, 1e-5)
    strides = [asked.n_cols] * (2 if asked.direction == "forward" else 3)
    return getattr(launch, asked.direction).calls(asked, launch.plan(asked), program, *strides)


def assert_sound(asked: Problem, plan: Plan) -> None:
    assert plan.regime in REGIMES
    assert plan.programs_per_sm >= 1
    for size in (plan.block_rows, plan.block_cols, plan.num_warps):
        assert size >= 1
        assert size & (size - 1) == 0, plan
    assert plan.num_warps * asked.device.warp_size <= 1024
    if plan.regime == "cluster":
        per_thread = plan.chunks * plan.block_cols // (plan.num_warps * asked.device.warp_size)
        assert per_thread * asked.dtype.itemsize <= 128, f"{asked.n_cols} columns: {plan}"
    if plan.regime in ("tile", "resident", "cluster"):
        held = plan.cluster_size * plan.chunks * plan.block_cols
        assert asked.n_cols <= held < 2 * max(asked.n_cols, plan.cluster_size * plan.block_cols)
        assert (plan.cluster_size > 1) <= (plan.regime == "cluster")
        assert (plan.block_rows > 1) == (plan.regime == "tile")
    elif plan.regime == "grid":
        assert_grid(asked, plan)
    else:
        assert plan.block_rows == 1
    if plan.regime == "split":
        assert plan.part_cols >= plan.block_cols


def assert_grid(asked: Problem, plan: Plan) -> None:
    """All programs run at once, a row at a time."""
    n_parts = -(-asked.n_cols // plan.part_cols)
    assert 16 <= plan.part_cols <= max(16, plan.block_cols)
    assert plan.part_cols % 16 == 0
    assert (n_parts - 1) * plan.part_cols < asked.n_cols
    assert plan.n_programs * n_parts <= asked.device.n_sms * plan.programs_per_sm
    assert plan.pipeline_depth >= 1
    assert plan.block_rows == 1
    threads = plan.num_warps * asked.device.warp_size * plan.programs_per_sm
    assert (plan.maxnreg or 255) * threads <= 65536


@DEVICES
@DIRECTIONS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_width_has_a_plan(dtype, direction, on):
    for n_cols in WIDTHS:
        for n_rows in ROWS:
            asked = problem(direction, n_rows, n_cols, dtype, on)
            assert_sound(asked, launch.plan(asked))


@DEVICES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_every_width_has_a_plan_with_options(center, dtype, on):
    options = [{"n_column_sums": 3}, {"activation": "silu"}, {"residual_dtype": torch.float32}]
    options = [*options, options[0] | options[1], options[0] | options[1] | options[2]]
    for n_cols in (*WIDTHS, 3072, 5120, 6144, 12288):
        for changes in options:
            asked = problem("backward", 32768, n_cols, dtype, on, center=center, **changes)
            plan = launch.plan(asked)
            assert_sound(asked, plan)
            if plan.regime in ("tile", "resident") and n_cols >= 64:
                assert plan.n_programs >= min(on.n_sms, asked.n_rows // plan.block_rows)


def test_any_width_has_a_plan():
    draw = random.Random(1)
    for _ in range(500):
        asked = problem(draw.choice(["forward", "backward"]), 64, draw.randint(1, WIDEST))
        assert_sound(asked, launch.plan(asked))


@pytest.mark.parametrize(
    ("n_rows", "n_cols", "forward", "backward"),
    [
        (4096, 64, "tile", "tile"),
        (4096, 2048, "resident", "tile"),
        (4096, 4096, "resident", "tile"),
        (1, 4096, "resident", "tile"),
        (4096, 16384, "resident", "cluster"),
        (4096, 32768, "looped", "grid"),
        (4096, 65536, "cluster", "grid"),
        (2, 131072, "cluster", "grid"),
        (4096, 1 << 20, "looped", "grid"),
        (2, 1 << 20, "split", "grid"),
        (4096, 1 << 21, "looped", "looped"),
        (2, 1 << 21, "split", "split"),
    ],
)
def test_regimes_go_by_shape(n_rows, n_cols, forward, backward):
    assert launch.plan(problem("forward", n_rows, n_cols)).regime == forward
    assert launch.plan(problem("backward", n_rows, n_cols)).regime == backward


@DEVICES
@DIRECTIONS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_number_of_rows_compiles_nothing_new_for_rows_that_fit(dtype, direction, on):
    for n_cols in (1, 7, 64, 1000, 4096):
        compiled = set()
        for n_rows in ROWS[1:-1]:
            asked = problem(direction, n_rows, n_cols, dtype, on)
            plan = launch.plan(asked)
            assert plan.regime in ("tile", "resident", "looped")
            for one in calls(asked):
                constants = tuple(sorted((k, str(v)) for k, v in one.constants.items()))
                compiled.add((one.kernel.__name__, one.num_warps, constants))
        kernels = {name for name, *_ in compiled}
        assert len(compiled) == len(kernels), f"{n_cols} columns: {len(compiled)} compilations"


@pytest.mark.parametrize("center", [False, True])
def test_wide_rows_that_one_program_loads_at_once_are_not_split(center):
    """However few they are: what they need was compiled for many."""
    for n_rows in ROWS[1:-1]:
        plan = launch.plan(problem("forward", n_rows, 32768, torch.bfloat16, center=center))
        assert plan.regime == "looped"
        assert plan.chunks


@DEVICES
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
def test_grids_past_two_to_the_31_elements(n_rows, n_cols, direction):
    """A grid's first dimension holds less than 2^31 programs; sizes stay whole."""
    asked = problem(direction, n_rows, n_cols)
    for one in calls(asked):
        assert 0 < one.grid < 1 << 31
        assert one.integers["n_rows"] == n_rows
        assert one.integers["n_cols"] * one.constants["DIVISIBILITY"] == n_cols
        assert min(one.integers.values()) >= 0
    plan = launch.plan(asked)
    if direction == "backward":
        rows = calls(asked)[0].integers["rows_per_program"] * plan.n_programs
        assert rows >= n_rows


def test_no_rows_start_nothing_but_what_writes_zeros():
    for n_cols in (5, 4096, 200_000):
        assert all(call.grid == 0 for call in calls(problem("forward", 0, n_cols)))
        assert calls(problem("backward", 0, n_cols))[-1].grid > 0


def test_a_plan_is_pure_frozen_and_printable():
    asked = problem("backward")
    plan = launch.plan(asked)
    assert plan == launch.plan(dataclasses.replace(asked))
    assert hash(plan) == hash(launch.plan(asked))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.regime = "split"
    text = str(plan)
    for word in (
        plan.regime,
        str(plan.block_cols),
        str(plan.num_warps),
        str(plan.n_programs),
        plan.source,
    ):
        assert word in text


def test_force_holds_within_its_context_only():
    asked = problem(n_cols=40)
    free = launch.plan(asked)
    with force(regime="split", block_cols=16):
        with force(part_cols=32):
            plan = launch.plan(asked)
        assert (plan.regime, plan.block_cols, plan.part_cols, plan.source) == (
            "split",
            16,
            32,
            "forced",
        )
        assert launch.plan(asked).part_cols != 32
    assert launch.plan(asked) == free


@pytest.mark.parametrize(("n", "power"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128), (0, 1)])
def test_next_power_of_2(n, power):
    assert rules.next_power_of_2(n) == power


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((64, 32), 16), ((64, 36), 4), ((7, 16), 1), ((16, 0), 16), ((6, 10), 2)],
)
def test_alignment(sizes, expected):
    assert launch.rows.alignment(*sizes) == expected


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((4, 8), (8, 1), 8),
        ((4, 8), (10, 1), 10),
        ((4, 8), (0, 1), 0),
        ((4, 8), (1, 4), None),
        ((2, 3, 8), (60, 20, 1), 20),
        ((2, 3, 8), (61, 20, 1), None),
        ((2, 3, 8), (8, 16, 1), None),
        ((1, 3, 8), (999, 20, 1), 20),
        ((2, 1, 8), (20, 999, 1), 20),
        ((4, 1), (5, 7), 5),
        ((8,), (1,), 8),
        ((8,), (2,), None),
        ((0, 8), (8, 1), 8),
    ],
)
def test_row_stride(shape, stride, expected):
    t = torch.zeros(200).as_strided(shape, stride)
    assert launch.rows.row_stride(t) == expected
    if expected is not None:
        rows = torch.arange(t[..., 0].numel()) * expected
        assert torch.equal(t.as_strided((len(rows),), (expected,)), torch.zeros(len(rows)))


WIDE = {"n_rows": 4096, "n_cols": 65536, "dtype": torch.bfloat16}


@pytest.mark.parametrize(("direction", "n_cols"), [("forward", 65536), ("backward", 12288)])
def test_clusters_take_wide_rows(direction, n_cols):
    wide = WIDE | {"n_cols": n_cols}
    plan = launch.plan(problem(direction, **wide))
    assert plan.regime == "cluster"
    if direction == "forward" and plan.num_stages == 1:
        assert plan.n_programs == WIDE["n_rows"]
    else:  # every SM that can have one has as many, but for a few if then all have as many rows
        n, most = plan.n_programs, H200.resident(plan.cluster_size, plan.programs_per_sm)
        assert n == most or (0.95 * most < n < most and WIDE["n_rows"] % n == 0)
    few = launch.plan(problem(direction, **(wide | {"n_rows": 2})))
    assert few == dataclasses.replace(plan, n_programs=2)  # so nothing is compiled for them
    without = H200._replace(clusters=())
    elsewhere = launch.plan(problem(direction, **wide, on=without))
    assert elsewhere.regime == {"forward": "looped", "backward": "grid"}[direction]
    if direction == "backward":
        busy = launch.plan(problem(direction, **wide, on=without, activation="silu"))
        assert busy.block_cols == elsewhere.block_cols // 2


@pytest.mark.parametrize(("direction", "n_cols"), [("forward", 65536), ("backward", 12288)])
def test_rules_make_the_same_of_wide_rows(direction, n_cols):
    blackwell = Device("NVIDIA B200", "sm_100", 148, 32, ((74, 36, 18, 8),))
    asked = problem(direction, **(WIDE | {"n_cols": n_cols}), on=blackwell)
    plan = launch.plan(asked)
    assert (plan.regime, plan.source) == ("cluster", "rules")
    assert_sound(asked, plan)


@DIRECTIONS
def test_fp64_has_no_clusters(direction):
    assert launch.plan(problem(direction, 4096, 65536, torch.float64)).regime == "looped"


@pytest.mark.parametrize(("n_cols", "regime"), [(8192, "resident"), (16384, "grid")])
def test_a_third_sum_takes_no_larger_cluster(n_cols, regime):
    plain = launch.plan(problem("backward", 4096, n_cols, torch.bfloat16))
    plan = launch.plan(problem("backward", 4096, n_cols, torch.bfloat16, n_column_sums=3))
    assert (plain.regime, plan.regime) == ("cluster", regime)
    both = problem("backward", 4096, n_cols, torch.bfloat16, n_column_sums=3, activation="silu")
    assert launch.plan(both).regime == "grid"


def test_an_activation_of_centred_rows_takes_more_programs():
    plain = launch.plan(problem("backward", 32768, 4096, torch.bfloat16))
    plan = launch.plan(problem("backward", 32768, 4096, torch.bfloat16, activation="silu"))
    assert (plain.regime, plain.block_rows, plan.regime) == ("tile", 2, "cluster")
    assert plan.programs_per_sm > plain.programs_per_sm
    assert plan.programs_per_sm * plan.num_warps * 32 <= 512  # 128 registers for each thread


def test_options_take_more_programs_to_a_row():
    changes = {"activation": "gelu", "n_column_sums": 3}
    plain = launch.plan(problem("backward", 4096, 8192, torch.float32))
    plan = launch.plan(problem("backward", 4096, 8192, torch.float32, **changes))
    assert (plain.regime, plan.regime) == ("resident", "cluster")
    assert plan.cluster_size > 1
    # Where there are no such clusters, a grid has them.
    few = H200._replace(clusters=())
    instead = launch.plan(problem("backward", 4096, 8192, torch.float32, on=few, **changes))
    assert instead.regime == "grid"


def test_rows_of_a_tile_are_summed_where_they_lie_in_one_thread():
    wide = Plan("tile", 4, 1024, 4)
    assert options.sums_rows(wide, problem("backward", 100, 1024, torch.bfloat16))
    assert options.sums_rows(wide, problem("backward", 100, 1024, torch.float32))
    for other in (Plan("tile", 8, 512, 4), Plan("resident", 1, 1024, 4)):
        assert not options.sums_rows(other, problem("backward", 100, 512, torch.bfloat16))


def test_dy_is_read_together_with_h_where_a_thread_can_hold_it():
    asked = problem("backward", 100, 4096, torch.bfloat16)
    held = Plan("resident", 1, 1024, 4, chunks=4)
    assert options.reads_together(held, asked)
    assert not options.reads_together(dataclasses.replace(held, chunks=5), asked)
    assert not options.reads_together(held, dataclasses.replace(asked, n_column_sums=3))
    assert not options.reads_together(held, dataclasses.replace(asked, dtype=torch.float32))
    one = dataclasses.replace(held, chunks=1)
    assert options.reads_together(one, dataclasses.replace(asked, dtype=torch.float32))
    assert not options.reads_together(one, dataclasses.replace(asked, dtype=torch.float64))
    # A third sum takes no room where there is one for all rows of a tile.
    rows = Plan("tile", 4, 1024, 4, chunks=1)
    assert options.reads_together(rows, dataclasses.replace(asked, n_cols=1024, n_column_sums=3))


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_a_residual_takes_more_programs_to_a_row(center):
    plain = launch.plan(problem(**WIDE, center=True))
    held = launch.plan(problem(**WIDE, center=center, residual_dtype=torch.bfloat16))
    assert (held.regime, held.num_stages) == ("cluster", 2)
    warps, more_warps = (plan.cluster_size * plan.num_warps for plan in (plain, held))
    assert more_warps == 2 * warps  # for 4 bytes an element instead of 2, and the next row too
    for n_cols, regime in ((262144, "cluster"), (524288, "looped")):
        wide = problem("forward", 4096, n_cols, torch.float32, center=center)
        plan = launch.plan(dataclasses.replace(wide, residual_dtype=torch.float32))
        assert (plan.regime, plan.num_stages) == (regime, 1)


@DIRECTIONS
@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_the_table_has_plans_for_residuals_of_twice_the_width(direction, center):
    for n_cols in (100, 1000, 4096, 65536, 262144):
        asked = problem(direction, 4096, n_cols, torch.bfloat16, center=center)
        beside = launch.plan(dataclasses.replace(asked, residual_dtype=torch.float32))
        assert beside.source.startswith("table")
        # Where every thread has 16 bytes of the wider rows, no numbers change hands on their way to memory.
        if 128 < n_cols < 16384:
            assert beside.block_cols <= 4 * 32 * beside.num_warps


def test_a_row_is_read_again_only_if_there_is_nothing_else_to_read_again():
    plain = problem(n_rows=32768, n_cols=8192, dtype=torch.bfloat16, center=False)
    assert launch.plan(plain).regime == "looped"
    residuals = [{"residual_dtype": dtype} for dtype in (torch.bfloat16, torch.float32)]
    for changes in ({"pre_bias": True}, *residuals):
        odd = dataclasses.replace(plain, n_cols=8000, **changes)
        assert launch.plan(odd).regime == "resident"
        wide = dataclasses.replace(plain, n_cols=1 << 20, **changes)
        assert launch.plan(wide).regime == "looped"
    for changes in residuals:
        assert launch.plan(dataclasses.replace(plain, **changes)).regime == "resident"


def test_few_chunks_that_a_row_fills_are_known_to_its_kernel():
    """Then they are loaded at once, and a pre_bias costs nothing."""
    even = problem(n_rows=32768, n_cols=8192, dtype=torch.bfloat16, center=False)
    plan = launch.plan(even)
    assert (plan.regime, plan.chunks * plan.block_cols) == ("looped", 8192)
    assert launch.plan(dataclasses.replace(even, pre_bias=True)) == plan
    for n_cols, dtype in ((6000, torch.float32), (1 << 20, torch.bfloat16)):
        other = launch.plan(dataclasses.replace(even, n_cols=n_cols, dtype=dtype))
        assert (other.regime, other.chunks) == ("looped", 0)


@pytest.mark.parametrize(
    ("direction", "center", "dtype", "widest"),
    [
        ("forward", False, torch.bfloat16, 32768),
        ("forward", True, torch.bfloat16, 32768),
        ("backward", False, torch.bfloat16, 16384),
        ("backward", True, torch.bfloat16, 16384),
        ("backward", False, torch.float32, 32768),
        ("backward", True, torch.float32, 65536),
    ],
)
def test_the_table_has_plans_for_activations(direction, center, dtype, widest):
    """Of so many columns. Whatever else is asked for goes by the rules, from the plain norm's plan."""
    tabled = planner._table("sm_90")["plans"]
    kind = (direction, center, dtype.itemsize, 0)
    own = {
        row["max_cols"]: row["settings"]
        for row in reversed(tabled)  # of two rows for a width, the first is for the width itself
        if planner._kind(row) == kind and row["option"] == "activation"
    }
    assert max(own) == widest
    n_sums = 1 + center if direction == "backward" else 0
    for n_cols, settings in own.items():
        asked = problem(direction, 8192, n_cols, dtype, center=center, n_column_sums=n_sums)
        busy = dataclasses.replace(asked, activation="silu")
        plan = launch.plan(busy)
        assert {name: getattr(plan, name) for name in settings} == settings
        assert_sound(busy, plan)
        plain = planner._from_table(asked, 0, "")
        both = dataclasses.replace(busy, pre_bias=True, n_column_sums=n_sums and n_sums + 1)
        assert both.option == "activation+pre_bias"
        assert planner._tuned(both) == options.with_options(plain, both)
    beyond = launch.plan(dataclasses.replace(busy, n_cols=2 * max(own)))
    assert beyond.regime == {"forward": "cluster", "backward": "grid"}[direction]


def test_an_activation_may_have_plans_of_its_own(monkeypatch):
    """For some widths: for the others it takes those for all activations."""
    row = {"direction": "backward", "center": False, "itemsize": 2, "residual": 0}
    settings = {"regime": "resident", "block_rows": 1, "programs_per_sm": 1, "num_stages": 3}
    every = [row | {"option": "activation", "max_cols": n} for n in (1024, 4096, 8192)]
    own = [row | {"option": "gelu", "max_cols": 4096}]
    plans = [one | {"settings": settings | {"num_warps": 1}} for one in every]
    plans += [one | {"settings": settings | {"num_warps": 2}} for one in own]
    table = {"device": "this one", "triton": "3.6.0", "plans": plans}
    monkeypatch.setattr(planner, "_table", lambda arch: table)

    def num_warps(n_cols, activation):
        asked = problem("backward", 8192, n_cols, torch.bfloat16, center=False, n_column_sums=1)
        return planner._tuned(dataclasses.replace(asked, activation=activation)).num_warps

    assert [num_warps(n, "gelu") for n in (100, 1024, 1025, 4096, 4097)] == [1, 1, 2, 2, 1]
    assert [num_warps(n, "silu") for n in (1024, 4096)] == [1, 1]


def test_force_changes_what_is_planned_with_all_options():
    asked = problem(n_rows=32768, n_cols=8192, dtype=torch.bfloat16, center=False, pre_bias=True)
    plan = launch.plan(asked)
    with force(num_warps=2):
        assert launch.plan(asked) == dataclasses.replace(plan, num_warps=2, source="forced")


def test_weights_are_not_loaded_early_beside_a_residual():
    asked = problem(n_rows=32768, n_cols=5120, dtype=torch.bfloat16, center=False)
    assert launch.plan(asked).prefetch_parameters
    assert not launch.plan(
        dataclasses.replace(asked, residual_dtype=torch.bfloat16)
    ).prefetch_parameters


def test_a_pre_bias_lifts_the_limit_of_registers(monkeypatch):
    monkeypatch.setattr(planner, "VERSION", (3, 6))
    asked = problem(**WIDE, center=False)
    assert launch.plan(asked).maxnreg
    assert not launch.plan(dataclasses.replace(asked, pre_bias=True)).maxnreg


def test_a_pre_bias_is_loaded_ahead_for_a_smaller_tile():
    asked = problem(n_rows=1024, n_cols=262144, dtype=torch.float32, center=False)
    plain = launch.plan(asked)
    plan = launch.plan(dataclasses.replace(asked, pre_bias=True))
    assert plan.block_cols == plain.block_cols // 2
    assert plan.block_cols == 4 * 32 * plan.num_warps  # 16 bytes for each thread


def test_rows_lie_in_several_tiles_where_that_wastes_less():
    plan = launch.plan(problem(n_cols=5120, dtype=torch.bfloat16))
    assert (plan.block_cols, plan.chunks) == (1024, 5)
    rules = launch.plan(problem(n_cols=5120, dtype=torch.bfloat16, on=H200._replace(arch="sm_89")))
    assert (rules.block_cols, rules.chunks) == (1024, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_wider_than_anyone_holds_are_taken_in_chunks(dtype):
    assert launch.plan(problem("forward", 4096, 1 << 19, dtype)).regime == "looped"
    for direction in ("forward", "backward"):
        assert launch.plan(problem(direction, 4096, 1 << 24, dtype)).regime == "looped"
        assert launch.plan(problem(direction, 4, 1 << 24, dtype)).regime == "split"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("n_cols", [32768, 262144, 132 * 2048, 1 << 19])
def test_a_grid_takes_backward_of_wide_rows(n_cols, dtype):
    for n_rows in (1, 16, 1024):
        asked = problem("backward", n_rows, n_cols, dtype)
        assert launch.plan(asked).regime == "grid"
        assert_grid(asked, launch.plan(asked))
    assert launch.plan(problem("backward", 1024, n_cols, dtype, on=MI300X)).regime == "looped"


def test_a_grid_of_another_gpu_goes_by_its_multiprocessors():
    ampere = Device("NVIDIA A100", "sm_80", 108, 32)
    widest = ampere.n_sms * 2 * 4096
    for n_cols in (10_000, widest):
        asked = problem("backward", 1024, n_cols, on=ampere)
        assert launch.plan(asked).regime == "grid"
        assert_grid(asked, launch.plan(asked))
    assert launch.plan(problem("backward", 1024, widest + 1, on=ampere)).regime == "looped"


def test_a_grid_is_not_for_fp64_nor_for_forward():
    assert launch.plan(problem("backward", 1024, 262144, torch.float64)).regime == "looped"
    with force(regime="grid"):
        assert launch.plan(problem("forward", 1024, 262144)).regime == "looped"
        assert launch.plan(problem("backward", 1024, 262144, torch.float64)).regime == "looped"
        assert launch.plan(problem("backward", 4, 4096)).regime == "grid"


def test_the_mail_of_a_grid_stays_within_the_budget_of_partial_sums():
    """8 bytes for each part of a row, and what is left of 64 MiB beside the sums of all groups."""
    asked = problem("backward", 1, 262144)
    plan = launch.plan(asked)
    sums = 4 * planner.most_groups(plan, asked) * asked.n_column_sums * 262144
    most_rows = ((64 << 20) - sums) // (8 * 262144 // plan.part_cols)
    assert launch.plan(problem("backward", most_rows, 262144)).regime == "grid"
    assert launch.plan(problem("backward", most_rows + 1, 262144)).regime == "looped"


def test_number_of_rows_compiles_nothing_new_in_a_grid():
    for n_cols in (131072, 200_000, 262144):
        compiled = set()
        for n_rows in (1, 18, 100, 1000, 20000):
            one = calls(problem("backward", n_rows, n_cols, torch.bfloat16))[0]
            compiled.add((one.kernel.__name__, str(one.constants), str(one.options)))
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
    wide = {"n_rows": 1024, "n_cols": 262144, "dtype": torch.bfloat16}
    plain = launch.plan(problem("backward", **wide))
    plan = launch.plan(problem("backward", **wide, activation="gelu"))
    assert plan.block_cols == plain.block_cols // 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("arch", ["sm_90", "sm_89"])
def test_a_residual_leaves_a_grid_room_to_load_ahead(arch, dtype):
    on = H200._replace(arch=arch)
    for n_cols in (32768, 262144):
        asked = problem("backward", 1024, n_cols, torch.bfloat16, on=on)
        plan = launch.plan(dataclasses.replace(asked, residual_dtype=dtype))
        assert (plan.regime, plan.num_stages) == ("grid", 3)


def test_a_grid_takes_one_row_at_a_time():
    with force(regime="grid", block_rows=4), pytest.raises(ValueError, match="must be 1 in a grid"):
        launch.plan(problem("backward", 1024, 262144, torch.bfloat16))


@pytest.mark.parametrize("residual", [None, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_a_third_sum_leaves_a_grid_room_to_load_ahead(arch, residual):
    on = H200._replace(arch=arch)
    asked = problem("backward", 4096, 16384, torch.bfloat16, on=on, n_column_sums=3)
    plan = launch.plan(dataclasses.replace(asked, residual_dtype=residual))
    assert plan.regime == "grid"
    assert plan.num_stages >= 3


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_a_pre_bias_leaves_rows_that_are_read_twice_as_they_are(arch):
    on = Device("somewhere", arch, 108, 64 if arch == "gfx942" else 32)
    asked = problem(n_rows=1000, n_cols=16384, dtype=torch.float64, on=on)
    plan = launch.plan(asked)
    assert plan.regime == "looped"
    assert launch.plan(dataclasses.replace(asked, pre_bias=True)) == plan


def test_a_plan_of_a_grid_says_how_it_works():
    plan = launch.plan(problem("backward", 1024, 262144, torch.bfloat16))
    text = str(dataclasses.replace(plan, n_programs=2))
    tile = f"grid: {plan.block_rows} x {plan.block_cols} tile"
    ahead = f"sums {plan.pipeline_depth} rows ahead"
    for words in (tile, f"{plan.part_cols} columns per part", "2 groups", ahead):
        assert words in text


def test_limits_of_registers_are_for_the_compiler_they_were_found_with(monkeypatch):
    table = planner._table("sm_90")
    row = next(
        row
        for row in table["plans"]
        if row["settings"].get("maxnreg") and row["max_cols"] > 32768 and not row["option"]
    )  # narrower ones are for rows that do not fill the chunks of another
    dtype = {2: torch.bfloat16, 4: torch.float32}[row["itemsize"]]
    asked = problem(row["direction"], 4096, row["max_cols"], dtype, center=row["center"])
    assert not row["residual"]
    found_with = tuple(int(part) for part in table["triton"].split(".")[:2])
    for version, limit in ((found_with, row["settings"]["maxnreg"]), ((9, 9), 0)):
        monkeypatch.setattr(planner, "VERSION", version)
        assert launch.plan(asked).maxnreg == limit


def test_a_pre_bias_has_rows_of_its_own_for_some_widths_and_one_compiler(monkeypatch):
    """Between them, what was planned for the plain norm is made fit for it. Forward has no third sum to spill."""
    table = planner._table("sm_90")
    found_with = tuple(int(part) for part in table["triton"].split(".")[:2])
    rows = [row for row in table["plans"] if row["option"] == "pre_bias"]
    assert {row["itemsize"] for row in rows} == {2, 4}

    def settings(row):
        """Those that are the same whatever compiles them."""
        return {name: value for name, value in row["settings"].items() if name != "maxnreg"}

    for row in rows:
        plain = [
            other["max_cols"]
            for other in table["plans"]
            if planner._kind(other) == planner._kind(row) and not other["option"]
        ]
        narrower = max(width for width in plain if width < row["max_cols"])
        own = settings(row)
        beside = [
            settings(other)
            for other in rows
            if planner._kind(other) == planner._kind(row) and other["max_cols"] == narrower
        ]
        forward = row["direction"] == "forward"
        for version, n_cols, is_own in (
            (found_with, row["max_cols"], True),
            # Rows that do not fill their chunks are not for a plan that has chunks.
            (found_with, narrower + 8, not (forward and own["regime"] == "looped")),
            (found_with, narrower, own in beside),
            ((9, 9), row["max_cols"], forward),
        ):
            monkeypatch.setattr(planner, "VERSION", version)
            asked = problem(
                row["direction"],
                32768,
                n_cols,
                torch.bfloat16 if row["itemsize"] == 2 else torch.float32,
                center=row["center"],
                n_column_sums=0 if forward else 2 + row["center"],
                pre_bias=forward,
            )
            plan = launch.plan(asked)
            found = {name: getattr(plan, name) for name in own}
            assert (found == own) == is_own, (version, n_cols)


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
    """Where the table has one."""

    def regime(n_cols):
        asked = problem(n_rows=4096, n_cols=n_cols, dtype=dtype, center=center)
        return launch.plan(dataclasses.replace(asked, activation=activation)).regime

    assert regime(n_cols) == "looped"
    assert regime(n_cols - 8) == "resident"


@pytest.mark.parametrize(
    ("leaves", "center", "n_cols", "changes"),
    [
        (True, False, 4096, {}),  # parameters are early
        (False, True, 4096, {}),
        (False, False, 8192, {}),  # read again, from L1
        (True, True, 32768, {}),  # read again, from L2
        (False, True, 65536, {}),
        (True, True, 262144, {}),  # loaded ahead
        (False, True, 262144, {"residual_dtype": torch.float32}),
    ],
)
def test_results_stay_in_l2_for_the_next_kernel_where_nothing_else_needs_it(
    leaves, center, n_cols, changes
):
    asked = problem(n_rows=4096, n_cols=n_cols, center=center, **changes)
    assert calls(asked)[-1].constants["EVICT_FIRST"] is leaves


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
def test_rstd_needs_no_calls_where_registers_are_few(fast_rstd, n_cols, changes):
    asked = problem(n_rows=4096, n_cols=n_cols, center=False, **changes)
    assert calls(asked)[-1].constants["FAST_RSTD"] is fast_rstd


def test_a_plan_says_what_else_was_chosen():
    plan = Plan("resident", 1, 4096, 4, prefetch_parameters=True, fast_rstd=True, maxnreg=64)
    assert "weights loaded early, rstd without calls, at most 64 registers" in str(plan)


def test_too_many_parts_are_refused():
    with (
        force(regime="split", block_cols=16, part_cols=16),
        pytest.raises(ValueError, match="512 parts"),
    ):
        launch.plan(problem(n_cols=10_000))
