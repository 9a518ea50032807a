"""The search of the tuner, with made-up speeds. Its measurements need a GPU."""

import contextlib
import itertools

import pytest
import torch

from rownorm.lab.tune import candidates, search
from rownorm.lab.tune.command import WIDTHS
from rownorm.lab.tune.study import Study
from rownorm.launch.resources import TARGETS


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch):
    monkeypatch.setattr(candidates, "device_of", lambda _: TARGETS["sm_90"].device)


SPEEDS = {"looped": 4200, "resident": 4100, "tile": 4000, "cluster": 3900}


class MadeUpTimer:
    """Replaces ``StudyTimer``."""

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


def test_a_looped_width_gets_a_second_row_measured_at_another_width(monkeypatch, capsys):
    monkeypatch.setattr(search, "StudyTimer", MadeUpTimer)
    monkeypatch.setattr(search, "quickest_of_few", lambda study, final, machine: final[0])
    study = Study("forward", False, torch.bfloat16, 8192)
    looped, other = search.best_rows(study, None)
    assert looped["settings"]["regime"] == "looped"
    assert other["settings"]["regime"] == "resident"
    assert (other["max_cols"], other["measured_cols"]) == (8192, 7168)
    assert looped["gb_per_s"] > other["gb_per_s"]
    assert "cannot run" in capsys.readouterr().err
    monkeypatch.setitem(SPEEDS, "looped", 3000)
    (other,) = search.best_rows(study, None)
    assert "measured_cols" not in other


def test_the_width_of_the_second_row_is_between_two_widths():
    for narrower, wider in itertools.pairwise(WIDTHS):
        assert narrower < search.width_between(wider) < wider


def test_of_nearly_equal_settings_the_fastest_with_few_rows_wins(monkeypatch):
    forced = {}

    @contextlib.contextmanager
    def force(**settings):
        forced.update(settings)
        yield

    monkeypatch.setattr(search, "force", force)
    monkeypatch.setattr(search, "prepared", lambda *_, **__: (None, None, [], 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(search, "seconds_of", lambda *_, **__: forced["num_warps"])
    monkeypatch.setattr(MadeUpTimer, "flush", None, raising=False)
    fastest, nearly, slower = measured = [
        (speed, {"num_warps": num_warps}) for speed, num_warps in ((1000, 8), (998, 4), (990, 2))
    ]
    study = Study("forward", False, torch.bfloat16, 8192)
    assert search.quickest_of_few(study, measured, MadeUpTimer) == nearly
    assert search.quickest_of_few(study, [fastest, slower], MadeUpTimer) == fastest
