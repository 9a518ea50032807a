"""``rownorm fib run`` and ``report``: traces and device times to the lab's report."""

import json
import os
import shutil

import pytest
import torch
from flashinfer_bench import Evaluation

from lab_support.fib import GPU, add_traces, evaluation, export
from lab_support.lab_commands import METHOD, invoke
from rownorm_lab.commands.fib.report import section
from rownorm_lab.data.hold import hold
from rownorm_lab.data.records import Environment, Record
from rownorm_lab.data.runs import records_in
from rownorm_lab.fib.dataset import read
from rownorm_lab.fib.definition import definition_named
from rownorm_lab.fib.run import _jobs, _run_lab, run_dataset, solution_provider
from rownorm_lab.fib.traces import FILE, records_of, write_traces
from rownorm_lab.measure.bench import bench


def test_traces_become_records(tmp_path):
    folder = add_traces(export(tmp_path / "data"))
    records, problems = records_of(read(folder))
    assert not problems
    milliseconds = {"rownorm": 0.01, "rownorm_package": 0.01, "torch": 0.02, "reference": 0.1}
    assert {(one.provider, one.case.rows): one.seconds[0] for one in records} == {
        (provider, rows): pytest.approx(ms / 1000)
        for provider, ms in milliseconds.items()
        for rows in (1, 8)
    }
    (environment,) = {one.environment.device: one.environment for one in records}.values()
    assert environment.device == f"{GPU}, timed by FlashInfer-Bench"
    assert environment.peak_bytes_per_second > 4e12
    listed = json.loads(write_traces(read(folder)).read_text())
    assert len(listed) == 6
    assert listed[0]["evaluation"]["status"] == "PASSED"


def test_failures_become_records_with_their_reason(tmp_path):
    folder = add_traces(export(tmp_path / "data"), status="INCORRECT_NUMERICAL")
    add_traces(folder, status="RUNTIME_ERROR", log="first\nlast line\n", timestamp="2026-11-18")
    records, _ = records_of(read(folder))
    assert {(one.status, one.why) for one in records} == {
        ("wrong", "INCORRECT_NUMERICAL"),
        ("failed", "RUNTIME_ERROR: last line"),
    }


def test_the_report_has_both_clocks_and_other_authors(tmp_path):
    folder = export(tmp_path / "data", "--batch", "8,32")
    path = folder / "solutions/rownorm/norm/rmsnorm_d4096/rownorm_package_rmsnorm_d4096.json"
    other = json.loads(path.read_text()) | {"author": "somebody", "name": "fast_rmsnorm_d4096"}
    (folder / "solutions/somebody").mkdir()
    (folder / "solutions/somebody/fast.json").write_text(json.dumps(other))
    add_traces(folder)
    (case,) = {one.case for one in records_of(read(folder))[0] if one.case.rows == 32}
    device_time = Record(
        case=case,
        provider="rownorm",
        method=METHOD,
        seconds=[3e-6] * 5,
        environment=Environment(device=GPU, kind="cuda"),
    )
    text = section(read(folder), [device_time])
    rows = [
        [cell.strip() for cell in line.split("|")]
        for line in text.splitlines()
        if "PASSED |" in line
    ]
    ours = {row[3]: row for row in rows if row[4] == "rownorm"}
    assert ours["32 x 4096"][5:13] == [
        *("PASSED", "0.0001", "10.0 µs", "10.0x", "3.00 µs", "below 20.0 µs", "yes", "yes"),
    ]
    assert ours["8 x 4096"][9:13] == ["not measured", "", "", ""]
    assert "fast (somebody)" in text
    ran = invoke("fib", "report", folder, "--no-plots")
    assert ran.exit_code == 0, ran.output
    analysis = (folder / "report/analysis.md").read_text()
    for words in (
        f"## {GPU}, timed by FlashInfer-Bench",
        "What is the arithmetic intensity?",
        "Is it bound by memory",
        "What percentage of peak bandwidth",
        "How does it scale with the batch?",
        "## FlashInfer-Bench",
        "There are two clocks.",
        "fast (somebody)",
    ):
        assert words in analysis
    assert "There are two clocks." in (folder / "report/report.html").read_text()
    assert invoke("fib", "report", folder).exit_code == 2  # it exists
    assert invoke("fib", "report", folder, "--no-plots", "--force").exit_code == 0


def test_the_limits_are_compared_with_both_clocks(tmp_path):
    folder = add_traces(export(tmp_path / "data", "--batch", "1"), faster="none")  # 20 µs
    (case,) = {one.case for one in records_of(read(folder))[0]}
    device_time = Record(
        case=case,
        provider="rownorm",
        seconds=[3e-6],
        environment=Environment(device=GPU, kind="cuda"),
    )
    text = section(read(folder), [device_time])
    assert "| below 10.0 µs | no | yes |" in text  # rownorm
    assert "| below 10.0 µs | no | not measured |" in text  # torch
    assert "written for an A100" in text


def test_single_latencies_have_no_interval_and_are_not_noise(tmp_path):
    folder = add_traces(export(tmp_path / "data"))
    ran = invoke("fib", "report", folder, "--no-plots")
    assert ran.exit_code == 0, ran.output
    text = (folder / "report/analysis.md").read_text()
    assert "rownorm is fastest or level in 2 of 2 cases. Every time is a single one" in text
    assert "too noisy to decide" not in text
    assert "| 2.00x, torch |" in text
    # The reference was timed with each Solution; that is no duplicate.
    assert "not used" not in text + ran.output
    assert "left out" not in ran.output
    add_traces(folder, timestamp="2026-11-16")
    ran = invoke("fib", "report", folder, "--no-plots", "--force")
    assert "6 older traces of the same Solution and workload left out" in ran.output


def test_a_list_of_traces_is_enough(tmp_path):
    folder = add_traces(export(tmp_path / "data", "--batch", "1"))
    file = write_traces(read(folder))
    alone = tmp_path / "alone"
    alone.mkdir()
    listed = json.loads(file.read_text())
    unknown = listed[0] | {"definition": "gemm_n128"}
    (alone / FILE).write_text(json.dumps([*listed, unknown, {"solution": 1}]))
    ran = invoke("fib", "report", alone, "--no-plots")
    assert ran.exit_code == 1  # of the five, two are left out
    assert "trace 4: its Definition gemm_n128 is not in" in ran.output
    assert "trace 5: definition: Field required" in ran.output
    text = (alone / "report/analysis.md").read_text()
    assert "rownorm is fastest or level in 1 of 1 case" in text
    # In a dataset whose folder traces/ is gone, the Solutions are known, too.
    shutil.rmtree(folder / "traces")
    assert invoke("fib", "report", file, "--no-plots").exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not JSON"), ("{}", "is not a list of traces")]
)
def test_a_file_that_is_no_list_of_traces(tmp_path, content, message):
    (tmp_path / FILE).write_text(content)
    ran = invoke("fib", "report", tmp_path / FILE)
    assert ran.exit_code == 2
    assert message in ran.output


@pytest.mark.parametrize(
    "name",
    ["rmsnorm_d64", "add_layernorm_d128_bf16", "fused_add_rmsnorm_h4096", "layernorm_h7168_fp32"],
)
def test_a_name_of_a_convention_is_its_definition(name):
    assert definition_named(name).name == name


@pytest.mark.parametrize("name", ["gemm_n128", "rmsnorm_d0", "rmsnorm_d4096_fp64", "rmsnorm"])
def test_other_names_have_no_definition(name):
    assert definition_named(name) is None


def test_a_trace_that_is_no_norm_is_left_out_of_the_report(tmp_path):
    folder = export(tmp_path / "data")
    path = folder / "definitions/norm/rmsnorm_d64.json"
    definition = json.loads(path.read_text())
    definition["reference"] = "def run(x, weight, eps):\n    return x * weight\n"
    path.write_text(json.dumps(definition))
    ran = invoke("fib", "report", add_traces(folder))
    assert ran.exit_code == 2
    assert "has no trace of a norm" in ran.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_run_says_what_works(tmp_path):
    ran = invoke("fib", "run", export(tmp_path / "data"))
    assert ran.exit_code == 2
    assert "fib export, check, report and apply work" in ran.output
    assert not (tmp_path / "data" / FILE).exists()


def test_run_leaves_a_folder_alone_that_another_process_writes(tmp_path, monkeypatch):
    folder = export(tmp_path / "data")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("rownorm_lab.fib.run.run_dataset", None)  # it would not get that far
    for options in ((), ("--resume",)):
        with hold(folder):
            ran = invoke("fib", "run", folder, *options)
        assert ran.exit_code == 2, ran.output
        assert f"is in use by process {os.getpid()}" in " ".join(ran.output.split())


def test_resume_leaves_out_what_passed(tmp_path, capsys):
    folder = export(tmp_path / "data")
    assert [len(job.solutions) for job in _jobs(read(folder).content, [], True)] == [3, 3]
    add_traces(folder)
    assert not list(_jobs(read(folder).content, [], True))
    assert len(list(_jobs(read(folder).content, [], False))) == 2
    add_traces(folder, status="TIMEOUT", timestamp="2026-11-18")
    assert [len(job.solutions) for job in _jobs(read(folder).content, [], True)] == [3, 3]


@pytest.mark.parametrize(
    "options", [("--op", "rms_norm"), ("--convention", "public", "--op", "add_rms_norm")]
)
def test_the_lab_measures_solutions(tmp_path, short_rounds, device, options):
    """The lab's bench checks each Solution against fp64 before it times it."""
    folder = export(tmp_path / "data", *options, "--dtype", "fp16", "--cols", 64, "--batch", 2)
    content = read(folder).content
    (job,) = _jobs(content, [], False)
    providers = [solution_provider(job.definition, job.norm, one) for one in job.solutions]
    records = list(bench([job.case], [*providers, "ceiling"], run="one", rounds=2))
    assert {one.provider: one.status for one in records} == dict.fromkeys(
        ("rownorm", "rownorm_package", "torch", "ceiling"), "ok"
    )
    _run_lab(content, folder, [], resume=False, rounds=2)
    assert len(records_in(folder)) == 4
    _run_lab(content, folder, [], resume=True, rounds=2)
    assert len(records_in(folder)) == 4


class Runner:
    """In place of FlashInfer-Bench's runner, which needs a GPU: made-up evaluations, and an end at some workload."""

    def __init__(self, log_dir):
        self.left = 1

    def run_workload(self, definition, workload, solutions, config, root):
        if not self.left:
            raise self.error
        self.left -= 1
        return {one.name: Evaluation.model_validate(evaluation()) for one in solutions}

    def close(self):
        self.left = 0


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (RuntimeError("gone"), 1)]
)
def test_finished_workloads_are_kept(tmp_path, monkeypatch, capsys, short_rounds, error, status):
    folder = export(tmp_path / "data")
    monkeypatch.setattr(Runner, "error", error, raising=False)
    monkeypatch.setattr("rownorm_lab.fib.run.PersistentRunner", Runner)
    options = {"definitions": [], "rounds": 2, "iterations": 2}
    assert run_dataset(read(folder), resume=False, **options) == status
    assert len(read(folder).content.traces["rmsnorm_d64"]) == 3
    assert len(json.loads((folder / FILE).read_text())) == 3
    printed = capsys.readouterr()
    assert ("--resume" in printed.out) == (status == 130)
    assert ("not run: gone" in printed.err) == (status == 1)
    assert run_dataset(read(folder), resume=True, **options) == 0
    assert len(json.loads((folder / FILE).read_text())) == 6
    assert len(records_in(folder)) == 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlashInfer-Bench times on GPUs only")
def test_run_on_a_gpu(tmp_path):
    folder = export(tmp_path / "data", "--batch", "1,512")
    dataset = read(folder)
    assert run_dataset(dataset, definitions=[], resume=False, rounds=3, iterations=5) == 0
    traces = read(folder).content.traces["rmsnorm_d4096"]
    assert len(traces) == 6
    assert all(one.evaluation.correctness.max_relative_error < 1e-3 for one in traces)
    assert len(json.loads((folder / FILE).read_text())) == 6
    assert len(records_in(folder)) == 8


def test_the_page_is_not_wider_than_the_window(tmp_path, visit):
    folder = add_traces(export(tmp_path / "data"))
    assert invoke("fib", "report", folder, "--no-plots").exit_code == 0
    for width in (480, 1400):
        for scheme in ("light", "dark"):
            size = {"width": width, "height": 900}
            page = visit(folder / "report/report.html", viewport=size, color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
