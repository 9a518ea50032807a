"""``rownorm bench``: selecting cases, writing records, interrupting and resuming."""

import os
from pathlib import Path

import msgspec
import pytest
import torch

from lab_support.lab_commands import TINY, TWO_PROVIDERS, invoke, small_record, write_run
from rownorm_lab.commands.bench import run as bench_run
from rownorm_lab.commands.bench.selection import select_cases
from rownorm_lab.data import runs
from rownorm_lab.data.measurements import cases_of, results_of
from rownorm_lab.data.records import Writer, read

pytestmark = pytest.mark.usefixtures("command_line")


def test_list_prints_the_cases_and_writes_nothing(tmp_path):
    ran = invoke("bench", "--suite", "course", "--list")
    assert ran.exit_code == 0
    assert len(ran.output.splitlines()) == 8
    assert ran.output.startswith("layer_norm forward fp32 4096x256 ")
    assert os.listdir() == []


def test_options_choose_among_the_cases_of_a_suite():
    ran = invoke("bench", "--suite", "speed", "--op", "rms_norm", "--pass", "backward", "--list")
    assert len(ran.output.splitlines()) == 12
    assert all(line.startswith("rms_norm backward") for line in ran.output.splitlines())


def test_suites_and_shapes_together_and_each_case_once():
    both = ("--op", "rms_norm,layer_norm", "--pass", "forward,both")
    ran = invoke("bench", *both, "--shape", "2x8", "--shape", "1..2x8", "--list")
    assert len(ran.output.splitlines()) == 8


def test_options_of_a_shape():
    options = ("--pre-bias", "--activation", "silu", "--no-bias", "--residual-dtype", "fp32")
    ran = invoke("bench", "--op", "add_layer_norm", "--shape", "2x8", *options, "--list")
    assert "add_layer_norm (fp32 residual, no bias, pre_bias, silu) forward bf16 2x8" in ran.output


def test_bench_writes_records_and_a_table():
    ran = invoke("bench", *TINY, "--provider", "rownorm,torch,ceiling,liger", "--out", "made")
    assert ran.exit_code == 0, ran.output
    reading = read("made")
    assert not reading.damaged
    assert len(reading.records) == 8
    ok = [one for one in reading.records if one.status == "ok"]
    assert {one.provider for one in ok} >= {"rownorm", "torch", "ceiling"}
    assert all(len(one.seconds) == 3 for one in ok)
    assert len({one.run for one in reading.records}) == 1
    table = [line for line in ran.output.splitlines() if not line.startswith("[")]
    assert max(map(len, table)) <= 100
    for expected in ("GB/s", "ceiling", "fastest peer", "made/records.jsonl"):
        assert expected in ran.output
    if not torch.cuda.is_available():
        assert ran.output.count("these are CPU timings") == 1
        assert "Missing: liger. rownorm info says why." in ran.output


def test_bench_makes_a_new_folder_each_time():
    for _ in range(2):
        assert invoke("bench", *TINY, *TWO_PROVIDERS).exit_code == 0
    assert len(os.listdir("results")) == 2


def test_bench_does_not_touch_a_folder_that_is_there(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("mine")
    ran = invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made")
    assert ran.exit_code == 2
    assert "exists and is not empty; choose another, or continue it: --resume made" in ran.output
    assert os.listdir("made") == ["mine"]


@pytest.mark.parametrize("kept", [2, 3])
def test_resume_measures_incomplete_cases_again_as_a_whole(kept):
    """So that the rounds of a case belong together."""
    assert invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made").exit_code == 0
    lines = Path("made/records.jsonl").read_text().splitlines(keepends=True)
    cut = "".join(lines[:kept]) + lines[kept][:50]  # killed while this line was written
    Path("made/records.jsonl").write_text(cut)
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 0, ran.output
    assert ("1 incomplete case will be measured again as a whole" in ran.output) == (kept == 3)
    now = Path("made/records.jsonl").read_text().splitlines(keepends=True)
    assert now[:kept] == lines[:kept]
    reading = read("made")
    assert [number for number, _ in reading.damaged] == [kept + 1]
    (results,) = results_of(reading.records)
    assert len(results.rows) == 4
    assert sum(one.records for one in results.unused) == kept - 2
    for rows in cases_of(results.rows):
        assert len({row.record.run for row in rows.values()}) == 1

    before = Path("made/records.jsonl").read_text()
    assert invoke("bench", "--resume", "made").exit_code == 0
    assert Path("made/records.jsonl").read_text() == before


def test_resume_takes_no_other_options():
    assert invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made").exit_code == 0
    ran = invoke("bench", "--resume", "made", "--suite", "course", "--rounds", "3")
    assert ran.exit_code == 2
    assert "--suite, --rounds cannot be changed" in ran.output


@pytest.mark.parametrize("plan", [None, "{", '{"cases": 3}'])
def test_resume_of_something_else(plan, tmp_path):
    (tmp_path / "other").mkdir()
    if plan is not None:
        (tmp_path / "other" / runs.REQUEST).write_text(plan)
    ran = invoke("bench", "--resume", "other")
    assert ran.exit_code == 2
    assert "plan.json" in ran.output


def test_resume_on_another_device(tmp_path):
    request = runs.BenchRequest(cases=[small_record().case], providers=["torch"], rounds=3)
    folder = write_run("other", small_record(device="NVIDIA H900"))
    runs.write_request(folder, request)
    ran = invoke("bench", "--resume", "other")
    assert ran.exit_code == 2
    assert "was measured differently: device: NVIDIA H900, now " in ran.output


def test_resume_with_other_settings(monkeypatch):
    assert invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made").exit_code == 0
    here = bench_run.environment()
    changed = msgspec.structs.replace(here, settings={**here.settings, "threads": "77"})
    monkeypatch.setattr(bench_run, "environment", lambda: changed)
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 2
    assert "threads: " in ran.output
    assert "now 77. Start a new folder" in ran.output


def test_resume_with_a_provider_that_is_not_known():
    folder = Path("made")
    folder.mkdir()
    runs.write_request(
        folder, runs.BenchRequest(cases=[small_record().case], providers=["torhc"], rounds=3)
    )
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 2
    assert "made/plan.json: unknown provider 'torhc'; did you mean torch?" in ran.output


@pytest.mark.parametrize("status", ["failed", "missing"])
def test_resume_retries_failed_and_missing_providers(status):
    assert invoke("bench", *TINY, "--provider", "rownorm,torch", "--out", "made").exit_code == 0
    first, *others = read("made").records
    os.remove("made/records.jsonl")
    with Writer(Path("made/records.jsonl")) as writer:
        for one in (
            msgspec.structs.replace(first, status=status, why="then", seconds=[]),
            *others,
        ):
            writer.write(one)
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 0, ran.output
    assert "[1/1" in ran.output
    again = read("made").records
    assert [(one.key, one.status) for one in again[-2:]] == [
        (one.key, "ok") for one in (first, others[0])
    ]  # the whole case
    assert "then" not in ran.output
    assert "Nothing is left to measure" in invoke("bench", "--resume", "made").output


def test_resume_measures_a_case_again_if_its_rounds_do_not_belong_together():
    assert invoke("bench", *TINY, "--provider", "rownorm,torch", "--out", "made").exit_code == 0
    first, *others = read("made").records
    os.remove("made/records.jsonl")
    with Writer(Path("made/records.jsonl")) as writer:
        for one in (msgspec.structs.replace(first, run="another"), *others):
            writer.write(one)
    ran = invoke("bench", "--resume", "made")
    assert "1 incomplete case will be measured again as a whole" in ran.output
    assert len({one.run for one in read("made").records[-2:]}) == 1


def test_resume_skips_providers_that_are_still_missing(monkeypatch):
    monkeypatch.setattr("rownorm_lab.measure.bench.missing", lambda *_: "needs more")
    monkeypatch.setattr("rownorm_lab.commands.bench.run.missing", lambda *_: "needs more")
    ran = invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made")
    assert ran.exit_code == 1
    assert "nothing could be measured" in ran.output
    before = Path("made/records.jsonl").read_text()
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 1
    assert Path("made/records.jsonl").read_text() == before


def test_bench_fails_if_rownorm_fails(monkeypatch):
    def broken(*_):
        raise RuntimeError("it broke")

    ours = bench_run.all_providers()["rownorm"]
    monkeypatch.setattr(type(ours), "prepare", broken)
    ran = invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made")
    assert ran.exit_code == 1
    assert "it broke" in ran.output


def test_ctrl_c_keeps_what_was_measured(monkeypatch):
    bench = bench_run.bench

    def interrupted(*arguments, **options):
        records = bench(*arguments, **options)
        yield next(records)
        yield next(records)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "bench", interrupted)
    ran = invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made")
    assert ran.exit_code == 130
    assert "rownorm bench --resume made" in ran.output
    assert len(read("made").records) == 2


def test_a_full_disk_keeps_what_was_measured(monkeypatch):
    write, count = Writer.write, []

    def full(self, record):
        count.append(1)
        if len(count) > 2:
            raise OSError(28, "No space left on device")
        write(self, record)

    monkeypatch.setattr(Writer, "write", full)
    ran = invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made")
    assert ran.exit_code == 1
    assert "No space left on device" in ran.output
    assert "--resume made" in ran.output
    assert len(read("made").records) == 2


def test_cases_that_differ_in_eps_alone_are_one():
    """Their times are the same, and they share a place in results."""
    both = select_cases(["llama-3-8b", "qwen3"], [], ["rms_norm"], ["forward"], [], {})
    places = [(case.kind, case.rows, case.cols) for case in both]
    assert len(set(places)) == len(places)
    names = " ".join(case.name for case in both)
    assert "Llama-3-8B" in names
    assert "Qwen3-8B" in names
    assert any("Llama-3-8B" in case.name and "Qwen3-8B" in case.name for case in both)
