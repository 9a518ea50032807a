"""The tuner: what it tries, and the table that it wrote. Its measurements need a GPU."""

import collections
import dataclasses
import itertools
import sys
from pathlib import Path

import pytest
import torch

from rownorm.launch import Plan, Problem, force, plan, planner
from rownorm.launch.resources import TARGETS

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import tune

H200 = TARGETS["sm_90"].device
DTYPES = {0: None, 2: torch.bfloat16, 4: torch.float32}
ROWS = planner._table("sm_90")["plans"]


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch):
    monkeypatch.setattr(tune, "device_of", lambda _: H200)


def study_of(row):
    return tune.Study(
        row["direction"],
        row["center"],
        DTYPES[row["itemsize"]],
        row["max_cols"],
        DTYPES[row["residual"]],
        row["option"],
    )


def settled(settings, study):
    """Settings with everything that they leave to be as it is by default."""
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(Plan)
        if field.default is not dataclasses.MISSING
    }
    return defaults | {"block_cols": tune.next_power_of_2(study.n_cols)} | settings


def test_the_tuner_tries_what_the_table_has():
    """So it can be found again, on the next GPU or with the next compiler."""
    for row in ROWS:
        study = study_of(row)
        tried = [settled(settings, study) for settings in tune.candidates(study)]
        assert settled(row["settings"], study) in tried, row


def test_the_table_is_in_the_order_that_the_tuner_writes():
    assert sorted(ROWS, key=tune.kind_of) == ROWS


def test_only_a_row_in_chunks_has_another_beside_it():
    """The first is for widths that fill the chunks, the second for the others between this width and the last."""
    beside = collections.defaultdict(list)
    for row in ROWS:
        beside[tune.kind_of(row)].append(row["settings"]["regime"])
    several = [regimes for regimes in beside.values() if len(regimes) > 1]
    assert several
    for first, *others in several:
        assert first == "looped"
        assert len(others) == 1
        assert others != ["looped"]


@pytest.mark.parametrize("n_cols", [128, 1024, 5120, 16384, 262144])
@pytest.mark.parametrize("residual", [None, torch.float32])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_all_that_is_tried_can_be_planned(direction, residual, n_cols):
    study = tune.Study(direction, True, torch.bfloat16, n_cols, residual)
    tried = list(tune.candidates(study))
    assert len({str(sorted(settings.items())) for settings in tried}) == len(tried) > 0
    sums = 2 if direction == "backward" else 0
    asked = Problem(direction, study.n_rows, n_cols, study.dtype, residual, True, sums, H200)
    for settings in tried:
        with force(**settings):
            made = plan(asked)
        assert (made.regime, made.num_warps) == (settings["regime"], settings["num_warps"])


@pytest.mark.parametrize(
    ("study", "kind"),
    [
        (("forward", False, torch.bfloat16), "rms_norm forward bf16"),
        (("backward", True, torch.float32), "layer_norm backward fp32"),
        (
            ("backward", True, torch.bfloat16, torch.float32),
            "add_layer_norm (fp32 residual) backward bf16",
        ),
        (("backward", False, torch.float16, None, "pre_bias"), "rms_norm (pre_bias) backward fp16"),
        (("forward", True, torch.bfloat16, None, "activation"), "layer_norm (silu) forward bf16"),
        (("forward", True, torch.bfloat16, None, "gelu"), "layer_norm (gelu) forward bf16"),
    ],
)
def test_a_study_is_a_case_of_the_lab(study, kind):
    """So its rounds and its bytes are those of the bench."""
    direction, center, dtype, *rest = study
    case = tune.Study(direction, center, dtype, 2048, *rest).case(1000)
    assert (case.kind, case.rows, case.cols) == (kind, 1000, 2048)


SPEEDS = {"looped": 4200, "resident": 4100, "tile": 4000, "cluster": 3900}


class Timed:
    """In the place of a Bench."""

    def __init__(self, study, machine):
        self.study = study

    def speed(self, settings, rounds):
        if settings["num_warps"] == 16:
            raise RuntimeError("too many registers")
        fills = self.study.n_cols % settings["block_cols"] == 0
        slower = 0 if fills or settings["regime"] != "looped" else 1000
        return SPEEDS[settings["regime"]] + settings["num_warps"] - slower

    def row(self, speed, settings):
        return {"max_cols": self.study.n_cols, "settings": settings, "gb_per_s": speed}


def test_a_width_in_chunks_has_a_row_measured_between(monkeypatch, capsys):
    monkeypatch.setattr(tune, "Bench", Timed)
    monkeypatch.setattr(tune, "quickest_of_few", lambda study, final, machine: final[0])
    study = tune.Study("forward", False, torch.bfloat16, 8192)
    chunks, held = tune.measure(study, None)
    assert chunks["settings"]["regime"] == "looped"
    assert held["settings"]["regime"] == "resident"
    assert (held["max_cols"], held["measured_cols"]) == (8192, 7168)
    assert chunks["gb_per_s"] > held["gb_per_s"]
    assert "cannot run" in capsys.readouterr().err
    monkeypatch.setitem(SPEEDS, "looped", 3000)
    (held,) = tune.measure(study, None)
    assert "measured_cols" not in held


def test_the_width_between_has_no_row_of_its_own():
    for narrower, wider in itertools.pairwise(tune.WIDTHS):
        assert narrower < tune.width_between(wider) < wider


def test_what_is_nearly_as_fast_must_be_quick_with_few_rows(monkeypatch):
    monkeypatch.setattr(tune, "prepared", lambda *_, **__: (None, None, [], 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(tune, "seconds_of", lambda *_, **__: planner._forced["num_warps"])
    monkeypatch.setattr(Timed, "flush", None, raising=False)
    fastest, nearly, slower = measured = [
        (speed, {"num_warps": num_warps}) for speed, num_warps in ((1000, 8), (998, 4), (990, 2))
    ]
    study = tune.Study("forward", False, torch.bfloat16, 8192)
    assert tune.quickest_of_few(study, measured, Timed) == nearly
    assert tune.quickest_of_few(study, [fastest, slower], Timed) == fastest
