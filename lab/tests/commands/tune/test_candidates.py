"""The candidates of the tuner: they include every row of the shipped table, and the planner accepts them."""

import dataclasses

import pytest
import torch
from triton import next_power_of_2

from lab_support.tuning import H200
from rownorm.launch import Plan, Problem, plan
from rownorm.launch.planning import compiler
from rownorm.launch.planning.files import shipped_file
from rownorm_lab.commands.tune.candidates import candidates, forced
from rownorm_lab.commands.tune.study import TuningCase
from rownorm_lab.commands.tune.table import read_rows, study_of

ROWS = read_rows(shipped_file("sm_90"))


def completed(settings, study):
    """Settings with the defaults of Plan for the rest."""
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(Plan)
        if field.default is not dataclasses.MISSING
    }
    return defaults | {"block_cols": next_power_of_2(study.n_cols)} | settings


def test_the_tuner_tries_every_row_of_the_table():
    """So the row can be found again, on the next GPU or with the next compiler."""
    for row in ROWS:
        study = study_of(row)
        tried = [completed(settings, study) for settings in candidates(study, H200)]
        assert completed(row["settings"], study) in tried, row


@pytest.mark.parametrize("n_cols", [4, 128, 1024, 5120, 16384, 262144])
@pytest.mark.parametrize("residual", [None, torch.float32])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_planner_accepts_every_candidate(direction, residual, n_cols):
    study = TuningCase(direction, True, torch.bfloat16, n_cols, residual)
    tried = list(candidates(study, H200))
    assert len({str(sorted(settings.items())) for settings in tried}) == len(tried) > 0
    sums = 2 if direction == "backward" else 0
    problem = Problem(direction, study.n_rows, n_cols, study.dtype, residual, True, sums, H200)
    for settings in tried:
        with forced(settings):
            found = plan(problem)
        assert (found.regime, found.num_warps) == (settings["regime"], settings["num_warps"])


def test_forced_settings_are_the_plan_that_a_table_with_them_gives(monkeypatch):
    """So what is timed is what a call gets. A setting that a row leaves out has its default in both."""
    monkeypatch.setattr(compiler, "VERSION", (3, 6))  # the table's own
    for row in ROWS[::5]:
        study = study_of(row)
        sums = (
            0
            if row["direction"] == "forward"
            else 1 + row["center"] + (row["option"] == "pre_bias")
        )
        asked = Problem(
            row["direction"], study.n_rows, study.n_cols, study.dtype, study.residual,
            row["center"], sums, H200, study.activation,
            row["option"] == "pre_bias" and row["direction"] == "forward",
        )  # fmt: skip
        given = plan(asked)
        if given.source != "table for NVIDIA H200" or row["settings"]["regime"] != given.regime:
            continue  # the second row of a width
        with forced(row["settings"]):
            assert dataclasses.replace(plan(asked), source="") == dataclasses.replace(
                given, source=""
            )
