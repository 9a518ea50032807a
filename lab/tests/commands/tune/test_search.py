"""The search of the tuner, with the fake clock of ``lab_support/tuning.py``. Its measurements need a GPU."""

import itertools

import pytest
import torch

from lab_support.tuning import H200
from rownorm_lab.commands.tune import search as module
from rownorm_lab.commands.tune.candidates import candidates
from rownorm_lab.commands.tune.command import WIDTHS
from rownorm_lab.commands.tune.journal import FILE, Journal, left_out
from rownorm_lab.commands.tune.search import FINALISTS, Search
from rownorm_lab.commands.tune.static import CompiledCandidate
from rownorm_lab.commands.tune.study import TuningCase
from rownorm_lab.commands.tune.timer import DeviceLost

STUDY = TuningCase("forward", False, torch.bfloat16, 8192)
NARROW = TuningCase("forward", False, torch.bfloat16, 1024)


def test_a_looped_width_gets_a_second_row_measured_at_another_width(search, clock):
    looped, other = search.rows(STUDY)
    assert looped["settings"]["regime"] == "looped"
    assert other["settings"]["regime"] == "resident"
    assert (other["max_cols"], other["measured_cols"]) == (8192, 7168)
    assert looped["gb_per_s"] > other["gb_per_s"]
    between = STUDY._replace(n_cols=7168)
    assert search.journal.is_checked(between, other["settings"])


def test_a_width_that_is_not_looped_gets_one_row(search, clock):
    clock.microseconds["looped"] = 200
    (row,) = search.rows(STUDY)
    assert "measured_cols" not in row
    assert row["settings"]["regime"] == "resident"


def test_a_row_has_its_runner_up_and_its_reason(search, clock):
    clock.microseconds["looped"] = 200
    (row,) = search.rows(STUDY)
    assert row["runner_up"]["settings"] != row["settings"]
    assert row["runner_up"]["gb_per_s"] <= row["gb_per_s"]
    n = len(list(candidates(STUDY, H200)))
    assert row["reason"].startswith(f"fastest of {n} candidates")


def test_the_width_of_the_second_row_is_between_two_widths():
    for narrower, wider in itertools.pairwise(WIDTHS):
        assert narrower < module.width_between(wider) < wider


def test_every_candidate_is_checked_before_it_is_timed(search, clock):
    search.best(NARROW)
    n = len(list(candidates(NARROW, H200)))
    assert sum(what[1] for what in clock.asked if what[0] == "check") == n
    kinds = [what[0] for what in clock.asked]
    assert kinds[0] == "check"
    assert kinds.count("seconds") == n + FINALISTS


@pytest.mark.parametrize("status", ["wrong", "failing"])
def test_wrong_and_failing_settings_have_no_time_and_are_not_chosen(search, clock, status):
    fastest = search.best(NARROW).settings
    clock.asked.clear()
    getattr(clock, status).append({"regime": fastest["regime"]})
    again = TuningCase("forward", True, torch.bfloat16, 1024)
    assert search.best(again).settings["regime"] != fastest["regime"]
    bad = [t for t in search.journal.trials if t.study == again.key and t.status != "ok"]
    assert bad
    assert all(trial.seconds is None for trial in bad)
    words = {"wrong": "gives wrong results", "failing": "fails"}[status]
    assert left_out(bad) == {words: len(bad)}


def test_what_the_compiled_code_rules_out_is_neither_checked_nor_timed(search, clock):
    def spills(settings):
        return settings["regime"] == "resident"

    search.compile = lambda study, several: [
        CompiledCandidate(255, 80, 8, 0.1, "spills", "spills 80 bytes per thread")
        if spills(one)
        else None
        for one in several
    ]
    row = search.rows(NARROW)[0]
    every = list(candidates(NARROW, H200))
    n = sum(map(spills, every))
    assert 0 < n < len(every)
    assert left_out(search.journal.trials) == {"spills": n}
    assert sum(what[1] for what in clock.asked if what[0] == "check") == len(every) - n
    assert not any('"resident"' in what[-1] for what in clock.asked if what[0] == "seconds")
    assert f"fastest of {len(every) - n} candidates, {n} left out" in row["reason"]


def test_no_settings_at_all_is_an_error_with_the_causes(search):
    search.compile = lambda study, several: (
        [CompiledCandidate(0, 9, 0, 0, "spills", "spills")] * len(several)
    )
    with pytest.raises(ValueError, match=r"1024 columns: no settings can be used \(\d+ spills\)"):
        search.best(NARROW)


def test_of_nearly_equal_settings_the_fastest_with_few_rows_wins(search, clock):
    clock.few_rows = {1: 9, 2: 8, 4: 1, 8: 7, 16: 6, 32: 5}
    clock.microseconds = dict.fromkeys(clock.microseconds, 100)
    chosen = search.best(NARROW)
    few = [what for what in clock.asked if what[0] == "few"]
    assert len(few) == FINALISTS
    times = [
        clock.few_rows[t.settings["num_warps"]]
        for t in search.journal.trials
        if t.stage == "few rows"
    ]
    assert clock.few_rows[chosen.settings["num_warps"]] == min(times)
    assert "fastest with 8 rows of 6 that are equally fast" in chosen.reason
    backward = TuningCase("backward", False, torch.bfloat16, 1024)
    assert "rows" not in search.best(backward).reason


@pytest.mark.parametrize("after", [0, 1, 7, 40, 60])
def test_an_interrupted_search_is_resumed_without_measuring_anything_twice(tmp_path, clock, after):
    def searched():
        with Journal(tmp_path) as journal:
            compile_none = lambda study, several: [None] * len(several)  # noqa: E731
            return Search(H200, journal, compile_none, clock.of).rows(STUDY)

    clock.interrupt_after = after
    with pytest.raises(KeyboardInterrupt):
        searched()
    assert len(clock.asked) == after
    clock.interrupt_after = None
    rows = searched()
    timed = [what for what in clock.asked if what[0] == "seconds"]
    assert len(set(timed)) == len(timed)
    clock.asked.clear()
    assert searched() == rows
    assert not clock.asked


def test_a_cut_off_line_is_tried_again(tmp_path, clock, search):
    rows = search.rows(NARROW)
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:-20])
    clock.asked.clear()
    with Journal(tmp_path) as journal:
        assert journal.damaged == 1
        again = Search(H200, journal, lambda study, several: [None] * len(several), clock.of)
        assert again.rows(NARROW) == rows
    assert [what[0] for what in clock.asked] == ["ceiling"]
    with Journal(tmp_path) as journal:
        assert journal.damaged == 1  # the cut-off line stays, and damages no other


def test_settings_that_end_the_gpu_are_noted(search, clock, monkeypatch):
    first = next(candidates(NARROW, H200))

    def lost(timer, several):
        raise DeviceLost(several[0], "an illegal memory access")

    monkeypatch.setattr(type(clock.of(NARROW)), "check", lost)
    with pytest.raises(DeviceLost):
        search.best(NARROW)
    trial = search.journal.find(NARROW, "first", first)
    assert (trial.status, trial.why) == ("failed", "an illegal memory access")
