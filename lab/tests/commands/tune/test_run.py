"""A whole tuning in a folder, with the fake clock of ``lab_support/tuning.py`` in place of the GPU's."""

import json

import msgspec
import pytest
import torch

import rownorm
from lab_support.tuning import H200, HERE
from rownorm import launch
from rownorm.launch.planning import files
from rownorm.launch.planning.files import shipped_file, table_of
from rownorm.launch.planning.settings import in_words
from rownorm_lab.commands.tune import verify
from rownorm_lab.commands.tune.compiling import Ahead
from rownorm_lab.commands.tune.journal import read as read_trials
from rownorm_lab.commands.tune.run import run_tune, studies_of
from rownorm_lab.commands.tune.table import kind_of, read_rows
from rownorm_lab.data.tunings import REQUEST, SUMMARY, TuneRequest, Tuning, read

SHIPPED = read_rows(shipped_file("sm_90"))
REQUESTED = TuneRequest(
    environment=HERE,
    operations=["rms_norm"],
    directions=["forward", "backward"],
    dtypes=["bf16"],
    widths=[1024, 2048],
)


@pytest.fixture
def tune(clock, tmp_path):
    """A function that tunes into a folder; nothing is compiled."""
    folder = tmp_path / "tuned"

    def run(request=REQUESTED, **options):
        return run_tune(folder, request, H200, Ahead(0, None), clock.of, **options)

    run.folder, run.clock = folder, clock
    return run


def test_the_table_is_picked_up_and_explained(tune, monkeypatch, capsys):
    assert tune() == 0
    shown = capsys.readouterr().out
    assert f"export ROWNORM_TABLES={tune.folder}" in shown
    assert "The limits of sm_90 are not known: nothing is left out" in shown
    assert "[" in shown
    assert "left] forward" in shown  # progress, with the time left
    monkeypatch.setenv(files.VARIABLE, str(tune.folder))
    files.table_of.cache_clear()
    try:
        x = torch.empty(512, 1024, dtype=torch.bfloat16, device="meta")
        explained = rownorm.explain(rownorm.rms_norm, x, x[0], device="sm_90")
    finally:
        monkeypatch.undo()
        files.table_of.cache_clear()
    assert explained.forward.source == f"table for NVIDIA H200 in {tune.folder / 'sm_90.json'}"
    assert "candidates" in explained.forward.reason
    second = _entry(tune.folder, "backward", 1024)["runner_up"]
    words = f"{in_words(second['settings'])}, {second['gb_per_s']} GB/s"
    assert explained.backward.second in (words, f"{words}, level")
    assert f"second: {words}" in str(explained)


def _entry(folder, direction, max_cols):
    """The first entry of a tuned table for this direction and width."""
    rows = read_rows(folder / "sm_90.json")
    return next(row for row in rows if (row["direction"], row["max_cols"]) == (direction, max_cols))


def test_the_runner_up_is_the_second_best_of_the_journal(tune):
    tune()
    trials, _ = read_trials(tune.folder)
    request = msgspec.structs.replace(REQUESTED, directions=["backward"], widths=[1024])
    (study,) = studies_of(request)
    final = [one for one in trials if (one.study, one.stage) == (study.key, "final")]
    first, second, *_ = sorted(final, key=lambda trial: trial.seconds)
    entry = _entry(tune.folder, "backward", 1024)
    assert entry["settings"] == first.settings
    assert entry["runner_up"]["settings"] == second.settings
    moved = study.case(study.n_rows).compulsory_bytes
    assert entry["runner_up"]["gb_per_s"] == round(moved / second.seconds / 1e9)


def test_the_table_says_where_it_is_from(tune):
    tune()
    table = json.loads((tune.folder / "sm_90.json").read_text())
    assert {"arch": "sm_90", "device": "NVIDIA H200", "triton": "3.6.0"}.items() <= table.items()
    assert table["date"]
    assert len(table["plans"]) >= 4
    assert all(row["runner_up"] and row["reason"] for row in table["plans"])


def test_ctrl_c_keeps_what_was_measured_and_resuming_finishes(tune, capsys):
    tune.clock.interrupt_after = 150
    assert tune() == 130
    assert f"rownorm tune --resume {tune.folder}" in capsys.readouterr().out
    assert not (tune.folder / "sm_90.json").exists()
    kept, _ = read_trials(tune.folder)
    assert len(kept) > 50
    summary = read(tune.folder, SUMMARY, Tuning)
    assert 0 < summary.studies_left < 4
    tune.clock.interrupt_after = None
    assert tune(read(tune.folder, REQUEST, TuneRequest)) == 0
    assert (tune.folder / "sm_90.json").exists()
    after, _ = read_trials(tune.folder)
    assert after[: len(kept)] == kept
    assert len({trial.key for trial in after}) == len(after)


def test_a_time_limit_ends_it_with_a_status_of_its_own(tune):
    assert tune(limit_s=0) == 3
    assert tune() == 0


def test_a_row_without_settings_fails_and_the_others_are_kept(tune, capsys):
    tune.clock.failing = [{"block_rows": 1}, {"block_rows": 2}, {"block_rows": 4}]
    tune.clock.failing += [{"block_rows": 8}, {"block_rows": 16}, {"block_rows": 32}]
    assert tune(msgspec.structs.replace(REQUESTED, widths=[1024])) == 1
    shown = capsys.readouterr()
    assert "no settings can be used" in shown.err
    assert not (tune.folder / "sm_90.json").exists()


def test_wrong_results_are_said_at_once(tune, capsys):
    tune.clock.wrong = [{"regime": "tile", "block_rows": 2}]
    assert tune() == 0
    shown = capsys.readouterr().out
    assert "wrong results, left out: rms_norm" in shown
    assert "gives wrong results, for example: y is off by 9 ulp" in shown


def test_other_rows_of_an_updated_table_are_copied(tune):
    assert tune(msgspec.structs.replace(REQUESTED, update=str(shipped_file("sm_90")))) == 0
    rows = read_rows(tune.folder / "sm_90.json")
    new = [row for row in rows if row not in SHIPPED]
    assert len(rows) >= len(SHIPPED)
    assert {row["max_cols"] for row in new} == {1024, 2048}


def test_the_rows_to_verify_are_of_all_regimes_and_the_same_each_time():
    file = shipped_file("sm_90")
    rows = verify.drawn(file, H200, 24)
    assert rows == verify.drawn(file, H200, 24)
    assert len({json.dumps(row) for row in rows}) == 24
    kinds = {(row["direction"], row["settings"]["regime"]) for row in SHIPPED}
    assert {(row["direction"], row["settings"]["regime"]) for row in rows} == kinds
    assert verify.drawn(file, H200, 24, seed=1) != rows


@pytest.mark.parametrize("version", [(3, 6), (3, 9)])
def test_a_row_is_verified_where_its_settings_are_used(monkeypatch, request, version):
    """The plan at the width that is compared names the row, for every row that can be drawn."""
    monkeypatch.setattr("rownorm.launch.planning.compiler.VERSION", version)
    table_of.cache_clear()  # it has the entries for the version that runs
    request.addfinalizer(table_of.cache_clear)
    rows = verify.drawn(shipped_file("sm_90"), H200, len(SHIPPED))
    named = [row for row in SHIPPED if "triton" in row]
    holding = [row for row in named if (row["triton"] == ">=3.9") == (version >= (3, 9))]
    assert {row["triton"] for row in named} == {">=3.9", "<3.9"}
    replaced = {kind_of(row) for row in holding}

    def is_used(row):
        """Rows for this version are used in place of the others of their width."""
        if row in named:
            return row in holding
        for_one_version = (row["direction"], row["option"]) == ("backward", "pre_bias")
        return kind_of(row) not in replaced and (version == (3, 6) or not for_one_version)

    assert len(rows) == sum(is_used(row) and "measured_cols" not in row for row in SHIPPED)
    studies = studies_of(TuneRequest(environment=HERE, verify=rows))
    for row, study in zip(rows, studies, strict=True):
        reason = launch.plan(study.problem(H200)).reason
        fill = " that fill their chunks" if row["settings"]["regime"] == "looped" else ""
        assert f" to {row['max_cols']} columns{fill}: {row['gb_per_s']} GB/s" in reason, study.key
    # Second rows of a width are among them. At that width itself, planning uses the first.
    assert any(study.n_cols < row["max_cols"] for row, study in zip(rows, studies, strict=True))


def test_the_problem_of_a_study_is_that_of_its_calls():
    rows = verify.drawn(shipped_file("sm_90"), H200, len(SHIPPED))
    for study in studies_of(TuneRequest(environment=HERE, verify=rows[::7])):
        case = study.case(study.n_rows)
        x = torch.empty(case.rows, case.cols, dtype=study.dtype, device="meta")
        residual = (x.to(study.residual),) if study.residual else ()
        named = {"weight": x[0], "pre_bias": x[0] if case.pre_bias else None}
        named |= {"bias": x[0] if case.has_bias else None, "activation": case.activation}
        function = getattr(rownorm, case.operation)
        explained = rownorm.explain(function, x, *residual, device="sm_90", **named)
        assert study.problem(H200) == getattr(explained, f"{study.direction}_problem")


def test_a_second_row_of_a_width_is_timed_between_widths(tune):
    rows = verify.drawn(shipped_file("sm_90"), H200, len(SHIPPED))
    second = next(row for row in rows if row["measured_cols"] < row["max_cols"])
    tune(TuneRequest(environment=HERE, verify=[second]))
    assert {asked[1].n_cols for asked in tune.clock.asked if asked[0] == "seconds"} == {
        second["max_cols"] * 7 // 8
    }


@pytest.mark.parametrize(("slower", "status"), [(0, 0), (5, 1)])
def test_verifying_compares_with_the_shipped_settings(tune, monkeypatch, capsys, slower, status):
    rows = [row for row in SHIPPED if row["max_cols"] == 1024 and not row["residual"]][:2]
    request = TuneRequest(environment=HERE, verify=rows)
    in_turns = type(tune.clock.of(None)).seconds_in_turns

    def found_is_slower(timer, several, rounds):
        _, shipped = in_turns(timer, several, rounds)
        return [shipped * (1 + slower / 100), shipped]

    monkeypatch.setattr(type(tune.clock.of(None)), "seconds_in_turns", found_is_slower)
    assert tune(request) == status
    shown = capsys.readouterr().out
    assert "found / shipped" in shown
    n_good = 2 if status == 0 else 0
    assert f"{n_good} of 2 rows: found settings take at most 1.01" in shown
    assert not (tune.folder / "sm_90.json").exists()
    tune.clock.asked.clear()
    assert tune(request) == status
    assert not tune.clock.asked


def test_the_same_settings_need_no_second_measurement():
    settings = SHIPPED[0]["settings"]
    assert verify.same(settings, settings | {"num_stages": 1})
    assert not verify.same(settings, settings | {"num_stages": 2})


def test_studies_are_in_the_order_of_the_table():
    studies = studies_of(msgspec.structs.replace(REQUESTED, operations=["layer_norm", "rms_norm"]))
    assert [study.key for study in studies[:3]] == [
        "rms_norm forward bf16, 1024 columns",
        "rms_norm forward bf16, 2048 columns",
        "layer_norm forward bf16, 1024 columns",
    ]
