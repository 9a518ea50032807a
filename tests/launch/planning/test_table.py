"""Tuned tables: what a file must have, and which row a problem takes."""

import copy
import dataclasses
import json

import pytest
import torch

from rownorm import launch
from rownorm.launch.planning import compiler, files, table
from support.planning import planner, problem, table_with

SETTINGS = {"regime": "resident", "block_rows": 1, "block_cols": 8192, "num_warps": 1}
ROW = {
    "direction": "forward",
    "center": False,
    "itemsize": 2,
    "residual": 0,
    "option": "",
    "max_cols": 4096,
    "settings": SETTINGS,
    "gb_per_s": 4000,
}
HEAD = dict.fromkeys(table.TEXTS, "") | {"arch": "sm_00", "device": "some GPU", "triton": "3.6.0"}


def parse(*rows):
    return table.parse({**HEAD, "plans": list(rows)}, "sm_00.json", "sm_00")


def with_settings(**settings):
    return {**ROW, "settings": {**SETTINGS, **settings}}


def without(row, name):
    row = copy.deepcopy(row)
    del row[name]
    return row


def test_a_good_row_is_read():
    (row,) = parse(ROW).entries
    assert (row.max_cols, row.settings["num_warps"], row.ceiling_gb_per_s) == (4096, 1, None)
    assert str(row) == "RMSNorm forward, 2-byte elements, up to 4096 columns"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "speed": 1}, "unknown speed; known are direction"),
        (without(ROW, "gb_per_s"), "gb_per_s must be given"),
        ({**ROW, "direction": "sideways"}, "direction must be one of .*'sideways'"),
        ({**ROW, "center": 1}, "center must be one of"),
        ({**ROW, "itemsize": 8}, "itemsize must be one of .*got 8"),
        ({**ROW, "residual": 3}, "residual must be one of .*got 3"),
        ({**ROW, "option": "tanh"}, "option must be one of .*'tanh'"),
        ({**ROW, "max_cols": 0}, "max_cols must be a whole number, 1 or more; got 0"),
        ({**ROW, "gb_per_s": "fast"}, "gb_per_s must be a whole number"),
        (with_settings(warps=4), "unknown warps"),
        ({**ROW, "triton": 3.9}, "triton must be a text; got 3.9"),
        ({**ROW, "triton": "3.9"}, "triton must be such as >=3.6,<3.9; got '3.9'"),
        ({**ROW, "triton": ">=3.6,"}, "triton must be such as >=3.6,<3.9; got '>=3.6,'"),
        ({**ROW, "settings": without(SETTINGS, "block_cols")}, "block_cols must be given"),
        (with_settings(regime="streamed"), "regime must be one of .*'streamed'"),
        (with_settings(num_warps=3), "num_warps must be a power of two; got 3"),
        (with_settings(block_cols=-1), "block_cols must be a whole number, 1 or more"),
        (with_settings(num_stages=0), "num_stages must be a whole number, 1 or more"),
        (with_settings(maxnreg=-8), "maxnreg must be a whole number, 0 or more"),
        (with_settings(fast_rstd=1), "fast_rstd must be true or false"),
        ({**ROW, "reason": 1}, "reason must be a text; got 1"),
        ({**ROW, "runner_up": SETTINGS}, "unknown block_cols, block_rows, num_warps, regime"),
        ({**ROW, "runner_up": {"gb_per_s": 1}}, "settings must be given"),
        (
            {**ROW, "runner_up": {"settings": {**SETTINGS, "num_warps": 3}, "gb_per_s": 1}},
            "num_warps must be a power of two; got 3",
        ),
        (
            {**ROW, "runner_up": {"settings": SETTINGS, "gb_per_s": 1}},
            "runner_up must have other settings",
        ),
        (
            {**with_settings(maxnreg=64), "direction": "backward"},
            "maxnreg must be 0 in backward except in a grid; got 64",
        ),
    ],
)
def test_a_bad_row_is_refused_by_name(row, message):
    with pytest.raises(ValueError, match=f"^sm_00.json: entry 1, .*{message}"):
        parse({**ROW, "max_cols": 64}, row)


def test_a_table_has_all_of_its_head():
    with pytest.raises(ValueError, match=r"sm_00\.json: must have the keys arch, device, torch"):
        table.parse({"device": "some GPU", "plans": []}, "sm_00.json", "sm_00")


def test_rows_are_in_order_and_not_repeated():
    wide, option = {**ROW, "max_cols": 8192}, {**ROW, "option": "pre_bias"}
    backward = {**ROW, "direction": "backward"}
    assert len(parse(ROW, wide, backward, option).entries) == 4
    for rows in ((wide, ROW), (option, ROW), (backward, ROW)):
        with pytest.raises(ValueError, match="must come before the entry for"):
            parse(*rows)
    with pytest.raises(ValueError, match="of two entries for one width"):
        parse(ROW, ROW)
    looped = with_settings(regime="looped")
    assert len(parse(looped, ROW).entries) == 2
    for rows in ((ROW, looped), (looped, looped)):
        with pytest.raises(ValueError, match="the first must be looped and the second not"):
            parse(*rows)


def test_the_row_with_the_next_larger_width_is_taken():
    rows = [
        {"max_cols": n, "settings": {**SETTINGS, "num_warps": w}} for n, w in ((64, 1), (512, 2))
    ]
    found = table_with(*rows)

    def num_warps(n_cols, **changes):
        plan = found.find(problem(n_cols=n_cols, center=False, **changes), 0, "")
        return plan and plan.num_warps

    assert [num_warps(n) for n in (1, 64, 72, 512, 520)] == [1, 1, 2, 2, None]
    assert num_warps(64, dtype=torch.float32) is None
    assert num_warps(64, residual_dtype=torch.float64) is None  # computes in fp64
    assert found.find(problem(n_cols=64, center=True), 0, "") is None
    assert found.find(problem(n_cols=64, center=False), 4, "") is None


def test_rows_that_are_not_aligned_take_only_entries_measured_with_such(monkeypatch):
    """bf16 rows of an odd width have accesses of 2 bytes, twice an odd width of 4 bytes."""
    rows = table_with(
        {"max_cols": 1023, "settings": {**SETTINGS, "num_warps": 2}},
        {"max_cols": 1024, "settings": SETTINGS},
        {"max_cols": 4096, "measured_cols": 3001, "settings": {**SETTINGS, "num_warps": 4}},
    )
    monkeypatch.setattr(planner, "table_of", lambda arch: rows)

    def num_warps(n_cols, **changes):
        plan = rows.find(problem(n_cols=n_cols, center=False, **changes), 0, "")
        return plan and plan.num_warps

    assert [num_warps(n) for n in (1023, 1001, 1002)] == [2, 2, 2]
    assert [num_warps(n) for n in (1024, 1016, 32, 31)] == [1, 1, 1, 1]
    assert [num_warps(n) for n in (1020, 1028)] == [2, None]  # accesses of 8 bytes: up to 1024
    assert [num_warps(n) for n in (1025, 4095, 4097)] == [4, 4, None]
    ruled = launch.plan(problem(n_cols=4097, center=False))
    assert (ruled.source, ruled.regime) == ("rules", "resident")
    assert "not aligned" in ruled.reason


def test_a_looped_row_is_for_rows_that_fill_its_chunks():
    chunks = {**SETTINGS, "regime": "looped", "block_cols": 1024}
    found = table_with(
        {"max_cols": 1024, "settings": SETTINGS},
        {"max_cols": 4096, "settings": chunks},
        {"max_cols": 4096, "settings": SETTINGS},
        {"max_cols": 8192, "settings": chunks},
    )

    def regime(n_cols):
        return found.find(problem(n_cols=n_cols, center=False), 0, "").regime

    assert [regime(n) for n in (1024, 2044)] == ["resident", "resident"]
    assert [regime(n) for n in (2048, 4096)] == ["looped", "looped"]
    assert regime(5000) == "looped"  # no other row has this width
    assert "that fill their chunks" in found.find(problem(n_cols=2048, center=False), 0, "").reason


def test_an_activation_may_have_rows_of_its_own(monkeypatch):
    """For some widths. For the others it takes those for all activations."""
    kind = {"direction": "backward", "itemsize": 2}
    every = [
        {**kind, "option": "activation", "max_cols": n, "settings": SETTINGS}
        for n in (1024, 4096, 8192)
    ]
    own = {**kind, "option": "gelu", "max_cols": 4096, "settings": {**SETTINGS, "num_warps": 2}}
    rows = table_with(*every, own)
    monkeypatch.setattr(planner, "table_of", lambda arch: rows)

    def num_warps(n_cols, activation):
        asked = problem("backward", 8192, n_cols, torch.bfloat16, center=False, n_column_sums=1)
        return launch.plan(dataclasses.replace(asked, activation=activation)).num_warps

    assert [num_warps(n, "gelu") for n in (100, 1024, 1028, 4096, 4100)] == [1, 1, 2, 2, 1]
    assert [num_warps(n, "silu") for n in (1024, 4096)] == [1, 1]


def test_a_row_with_an_option_is_taken_only_if_the_plain_norms_is_not_nearer():
    plain = [{"max_cols": n, "settings": SETTINGS} for n in (1024, 4096)]
    option = {"option": "pre_bias", "max_cols": 4096, "settings": {**SETTINGS, "num_warps": 2}}
    found = table_with(*plain, option)

    def num_warps(n_cols):
        plan = found.find(problem(n_cols=n_cols, center=False, pre_bias=True), 0, "pre_bias")
        return plan and plan.num_warps

    assert [num_warps(n) for n in (1024, 1028, 4096, 4100)] == [None, 2, 2, None]


def test_the_exact_row_comes_first_then_the_plain_norms_adapted(monkeypatch):
    cluster = {"regime": "cluster", "block_rows": 1, "block_cols": 4096, "num_warps": 8}
    cluster |= {"cluster_size": 4, "maxnreg": 64}
    rows = table_with(
        {"max_cols": 65536, "settings": cluster},
        {"option": "pre_bias", "max_cols": 32768, "settings": {**cluster, "num_warps": 16}},
        {"residual": 4, "max_cols": 65536, "settings": {**cluster, "cluster_size": 8}},
    )
    monkeypatch.setattr(planner, "table_of", lambda arch: rows)

    def plan(n_cols, **changes):
        return launch.plan(problem(n_cols=n_cols, center=False, **changes))

    assert plan(32768, pre_bias=True).num_warps == 16
    adapted = plan(65536, pre_bias=True)
    assert (adapted.num_warps, adapted.block_cols, adapted.maxnreg) == (8, 2048, 0)
    assert "pre_bias takes registers" in adapted.reason
    assert plan(65536, residual_dtype=torch.float32).cluster_size == 8
    both = plan(65536, residual_dtype=torch.float32, pre_bias=True)
    assert (both.cluster_size, both.block_cols) == (8, 2048)
    assert plan(65536, residual_dtype=torch.float16).num_stages == 2  # the plain norm's, adapted
    assert plan(262144).source == "rules"


def test_the_reason_of_a_row_has_its_figures():
    measured = {"gb_per_s": 3000, "ceiling_gb_per_s": 4000, "experiment": "XX-01"}
    found = table_with(
        {"max_cols": 1024, "settings": SETTINGS},
        {"max_cols": 4096, "settings": SETTINGS},
        {"option": "pre_bias", "max_cols": 4096, "settings": SETTINGS, **measured},
    )
    reason = found.find(problem(n_cols=4096, center=False, pre_bias=True), 0, "pre_bias").reason
    words = ("pre_bias", "1025 to 4096 columns", "3000 GB/s", "75% of the ceiling", "Triton 3.6.0")
    for word in (*words, "experiment XX-01"):
        assert word in reason


@pytest.mark.parametrize(
    ("speed", "comment"),
    [
        (3950, ""),
        (3985, ", level"),
        (4015, ", level"),
        (4100, ", faster when measured later, at this width only"),
    ],
)
def test_a_plan_says_what_was_second(speed, comment):
    second = {"settings": {**SETTINGS, "num_warps": 2, "programs_per_sm": 4}, "gb_per_s": speed}
    found = table_with(
        {"max_cols": 1024, "settings": SETTINGS},
        {"max_cols": 4096, "settings": SETTINGS, "gb_per_s": 4000, "runner_up": second},
    )

    def words(n_cols):
        return found.find(problem(n_cols=n_cols, center=False), 0, "").second

    assert words(1024) == "the runner-up was not recorded"
    assert (
        words(4096) == f"resident: 1 x 8192 tile, 2 warps, 4 programs per SM, {speed} GB/s{comment}"
    )


def test_a_forced_plan_names_no_runner_up():
    asked = problem("backward", 4096, 8192, torch.bfloat16)
    assert launch.plan(asked).second
    with launch.force(num_warps=2):
        assert launch.plan(asked).second == ""


def test_an_architecture_without_a_file_has_no_table():
    assert files.table_of("sm_00") is None


def test_rows_survive_a_round_trip_through_json():
    (row,) = parse(json.loads(json.dumps(ROW))).entries
    given = {name: value for name, value in dataclasses.asdict(row).items() if name in ROW}
    assert given == ROW


def row_for(triton, warps, **settings):
    """A row with so many warps for these versions of Triton; for all with ``""``."""
    settings = {**SETTINGS, "num_warps": warps, **settings}
    return {"max_cols": 4096, "settings": settings, **({"triton": triton} if triton else {})}


@pytest.mark.parametrize(
    ("version", "warps"), [((3, 6), 2), ((3, 7), 2), ((3, 8), 1), ((3, 9), 4), ((3, 10), 4)]
)
def test_a_row_names_the_versions_of_triton_that_it_holds_for(version, warps, monkeypatch):
    monkeypatch.setattr(compiler, "VERSION", version)
    rows = (row_for("", 1), row_for(">=3.6,<3.8", 2), row_for(">=3.9", 4))
    for order in (rows, rows[::-1]):
        found = table_with(*order)
        asked = problem(n_cols=4096, center=False)
        assert found.find(asked, 0, "").num_warps == warps
        assert len(found.entries) == 1
        assert len(found.sources[0].entries) == 3


def test_a_row_for_other_versions_of_triton_is_not_there(monkeypatch):
    monkeypatch.setattr(compiler, "VERSION", (3, 6))
    asked = problem(n_cols=4096, center=False)
    assert table_with(row_for(">=3.9", 4)).find(asked, 0, "") is None


def test_a_row_that_names_this_version_is_not_changed_for_it(monkeypatch):
    """A limit of registers that was measured with 3.6 is dropped for 3.9; one that names 3.9 is kept."""
    monkeypatch.setattr(compiler, "VERSION", (3, 9))
    asked = problem(n_cols=4096, center=False)
    for triton, limit in (("", 0), (">=3.9", 64)):
        plan = table_with(row_for(triton, 4, maxnreg=64)).find(asked, 0, "")
        assert plan.maxnreg == limit


def test_looped_rows_of_a_version_keep_their_partner(monkeypatch):
    monkeypatch.setattr(compiler, "VERSION", (3, 9))
    looped = {"regime": "looped", "block_cols": 1024}
    found = table_with(
        row_for("", 1, **looped), row_for("", 2), row_for(">=3.9", 4, **looped), row_for(">=3.9", 8)
    )
    for n_cols, warps in ((3072, 4), (3000, 8)):
        assert found.find(problem(n_cols=n_cols, center=False), 0, "").num_warps == warps
