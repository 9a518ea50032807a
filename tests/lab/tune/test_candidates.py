"""The candidates of the tuner: they include every row of the shipped table, and the planner accepts them."""

import dataclasses

import pytest
import torch
from triton import next_power_of_2

from rownorm.lab.tune import candidates as candidates_module
from rownorm.lab.tune.candidates import candidates
from rownorm.lab.tune.study import Study
from rownorm.lab.tune.table import read_rows, shipped_table
from rownorm.launch import Plan, Problem, force, plan
from rownorm.launch.resources import TARGETS

H200 = TARGETS["sm_90"].device
DTYPES = {0: None, 2: torch.bfloat16, 4: torch.float32}
ROWS = read_rows(shipped_table("sm_90"))


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch):
    monkeypatch.setattr(candidates_module, "device_of", lambda _: H200)


def study_of(row):
    return Study(
        row["direction"],
        row["center"],
        DTYPES[row["itemsize"]],
        row["max_cols"],
        DTYPES[row["residual"]],
        row["option"],
    )


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
        tried = [completed(settings, study) for settings in candidates(study)]
        assert completed(row["settings"], study) in tried, row


@pytest.mark.parametrize("n_cols", [128, 1024, 5120, 16384, 262144])
@pytest.mark.parametrize("residual", [None, torch.float32])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_planner_accepts_every_candidate(direction, residual, n_cols):
    study = Study(direction, True, torch.bfloat16, n_cols, residual)
    tried = list(candidates(study))
    assert len({str(sorted(settings.items())) for settings in tried}) == len(tried) > 0
    sums = 2 if direction == "backward" else 0
    problem = Problem(direction, study.n_rows, n_cols, study.dtype, residual, True, sums, H200)
    for settings in tried:
        with force(**settings):
            found = plan(problem)
        assert (found.regime, found.num_warps) == (settings["regime"], settings["num_warps"])
