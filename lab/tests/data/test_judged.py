"""Runs whose figures have bars: ratios, verdicts over several runs, tables, files."""

import msgspec
import pytest

from rownorm_lab.data.judged import (
    CallRecord,
    StepRecord,
    new_judged,
    read_judged,
    refuse_mixed,
    write_judged,
)
from rownorm_lab.data.judged_tables import figure_table, run_lines, summary
from rownorm_lab.data.records import Environment
from rownorm_lab.data.studies import studies_in

STEP = StepRecord(
    model="llama",
    setting="bf16",
    seconds={"torch": [2.0, 4.0, 3.0], "rownorm": [1.0, 4.0, 2.0], "rownorm add": [1.0] * 3},
    host_seconds={},
    bars={"rownorm": 1.5, "rownorm add": 3.0},
)


def call(ours, setting="plain"):
    return CallRecord(
        norm="rms_norm",
        setting=setting,
        direction="forward",
        torch=[1e-5, 2e-5, 4e-5],
        rownorm=[ours * 1e-5, ours * 2e-5, ours * 4e-5],
        bar=1.1,
    )


def run(*records, name="calls", trial=False, planned=None, device="A GPU", conditions="so"):
    here = Environment(device=device, kind="cuda", torch="2", triton="3")
    planned = len(records) if planned is None else planned
    one = new_judged(name, here, conditions, trial=trial, planned=planned)
    for record in records:
        one = one.with_record(record)
    return one


def test_speeds_have_a_least_and_costs_a_most():
    swapped, add = STEP.figures
    assert (swapped.ratio, swapped.holds, add.ratio, add.holds) == (1.5, True, 3.0, True)
    assert (swapped.torch, swapped.rownorm) == (3.0, 2.0)
    strict = msgspec.structs.replace(STEP, bars={"rownorm": 1.51, "rownorm add": 3.0})
    assert [one.holds for one in strict.figures] == [False, True]
    assert [one.holds for one in call(1.1).figures + call(1.11).figures] == [True, False]
    # The median of the ratios, not the ratio of the medians.
    uneven = msgspec.structs.replace(STEP, seconds=STEP.seconds | {"rownorm": [2.0, 2.0, 1.0]})
    assert uneven.ratio("rownorm") == 2.0


def test_a_run_holds_if_it_is_complete_and_every_bar_does():
    assert run(call(1.0), call(1.1)).holds
    assert not run(call(1.0), call(1.2)).holds
    assert not run(call(1.0), planned=2).holds
    assert run(call(1.2), trial=True).holds


def test_one_run_in_a_table():
    table = figure_table([run(call(1.2))])
    assert table.header == [
        *("norm", "direction", "setting"),
        *("torch", "with rownorm", "cost", "bar", "holds"),
    ]
    line = ["rms_norm", "forward", "plain", "20.0 µs", "24.0 µs", "1.200", "1.1", "no"]
    assert table.lines == [line]
    assert figure_table([run(call(1.2), trial=True)]).lines[0][-1] == "not judged"
    assert "nothing is judged" in summary([run(call(1.2), trial=True)])
    assert summary([run(STEP, name="small")]).startswith("2 of 2 bars hold in this run")
    (line, _) = figure_table([run(STEP, name="small")]).lines
    assert line == ["llama", "bf16", "rownorm", "3.00 s", "2.00 s", "1.500", "1.5", "yes"]


def test_several_runs_in_a_table():
    first = run(call(1.0), call(1.0, "profiler"), call(1.2, "checkpoint"))
    second = run(call(1.05), call(1.3, "profiler"), planned=3)
    table = figure_table([first, second])
    assert [line[-1] for line in table.lines] == ["yes", "in 1 of 2 runs", "no"]
    by_name = [dict(zip(table.header, line, strict=True)) for line in table.lines]
    assert (by_name[1]["cost, run 1"], by_name[1]["cost, run 2"]) == ("1.000", "1.300")
    assert by_name[2]["torch, run 2"] == "not measured"
    assert summary([first, second]) == "1 of 3 bars hold in all of 2 runs."
    one, two = run_lines([first, second])
    assert one.startswith("Run 1: A GPU, torch 2")
    assert two.endswith("Incomplete: 2 of 3 records.")


def test_only_runs_of_the_same_kind_are_shown_together():
    one = run(call(1.0))
    refuse_mixed([one, run(call(1.1))])
    for other, what in (
        (run(call(1.0), device="B"), "device: A GPU | B"),
        (run(call(1.0), conditions="thus"), "conditions: so | thus"),
        (one, "named twice"),
    ):
        with pytest.raises(ValueError, match=what.replace("|", r"\|")):
            refuse_mixed([one, other])


def test_a_run_is_read_as_it_was_written(tmp_path):
    for one in (run(STEP, name="small"), run(call(1.0))):
        assert read_judged(write_judged(tmp_path, one)) == one
    assert studies_in(tmp_path) == []
    small, calls = tmp_path / "study-small.json", tmp_path / "study-calls.json"
    for text in (calls.read_text(), small.read_text().replace('"schema":1', '"schema":2'), "{"):
        small.write_text(text)
        with pytest.raises(ValueError, match="not a study"):
            read_judged(small)
    small.unlink()
    with pytest.raises(ValueError, match="No such file"):
        read_judged(small)
