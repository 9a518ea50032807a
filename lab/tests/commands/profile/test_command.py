"""``rownorm profile``: a norm, a model, bad input, reading a folder again, the page."""

import json
import os
from pathlib import Path

import pytest
import torch

from lab_support.lab_commands import invoke, refused, without_torch
from rownorm_lab.commands.profile.command import usual_tools

pytestmark = pytest.mark.usefixtures("command_line")
SMALL = ("--rows", "16", "--cols", "64", "--dtype", "fp32")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")


def test_a_norm_its_summary_and_its_report():
    ran = invoke("profile", "rms_norm", *SMALL, "--tools", "chrome", "--out", "made")
    assert ran.exit_code == 0, ran.output
    for name in ("triton_profile.json", "pytorch_profile.json"):
        trace = Path("made", name).read_text()
        assert json.loads(trace)["traceEvents"]
        assert json.loads(trace)["traceName"] == name
        assert ".part" not in trace  # the temporary file that it was written to
    summary = json.loads(Path("made/summary.json").read_text())
    assert summary["tools"] == [
        {"tool": "chrome", "status": "ok", "files": ["triton_profile.json", "pytorch_profile.json"]}
    ]
    names = {one["name"] for one in summary["kernels"]["rownorm"]}
    assert torch.cuda.is_available() or "rownorm::rms_norm" in names
    [difference] = [
        one for one in summary["figures"] if one["name"] == "largest difference from torch"
    ]
    assert difference["value"] < 1e-5
    assert summary["bottleneck"] in Path("made/summary.md").read_text()
    assert "Primary bottleneck" in ran.output

    assert "taken" not in refused_again("rms_norm", "--out", "made")
    Path("made/triton_profile.json").write_text("{")
    again = invoke("profile", "--read", "made", "--json")
    assert again.exit_code == 1
    read = json.loads(again.stdout)
    assert read["tools"][0]["status"] == "failed"
    assert "triton_profile.json cannot be used" in read["tools"][0]["why"]
    assert "torch" in read["kernels"]

    assert invoke("report", "made", "--no-plots").exit_code == 0
    page = Path("made/report/report.html").read_text()
    assert '<section id="profiles"><h2>Profiles</h2>' in page
    assert "Primary bottleneck" in page
    assert "There are no records" not in page


def refused_again(*arguments):
    """The message of a command that must not write where something is."""
    before = Path("made/summary.json").read_bytes()
    ran = invoke("profile", *arguments)
    assert ran.exit_code == 2
    assert Path("made/summary.json").read_bytes() == before
    return ran.output


@no_gpu
def test_without_a_gpu_the_summary_says_what_is_missing(monkeypatch):
    from rownorm_lab.data.profiles import ToolResult
    from rownorm_lab.profilers import chrome

    monkeypatch.setattr(chrome, "collect", lambda request, folder: ToolResult("chrome", "ok"))
    monkeypatch.setenv("COLUMNS", "80")
    ran = invoke("profile", "rms_norm", *SMALL, "--out", "made")
    assert ran.exit_code == 0, ran.output
    assert max(map(len, ran.output.splitlines())) <= 80
    tools = json.loads(Path("made/summary.json").read_text())["tools"]
    assert [(one["tool"], one["status"]) for one in tools] == [
        ("chrome", "ok"),
        ("proton", "missing"),
        ("ncu", "missing"),
        ("rocprofv3", "missing"),
    ]
    assert all("GPU" in one["why"] for one in tools[1:])
    asked = invoke("profile", "rms_norm", *SMALL, "--tools", "ncu", "--out", "other")
    assert asked.exit_code == 1  # it was asked for


def test_an_interrupted_run_can_be_read(monkeypatch):
    from rownorm_lab.profilers import chrome

    def interrupt(request, folder):
        (folder / "host.json").write_text('{"torch": {"host": 1e-3, "whole": 2e-3}}')
        raise KeyboardInterrupt

    monkeypatch.setattr(chrome, "collect", interrupt)
    ran = invoke("profile", "rms_norm", *SMALL, "--out", "made")
    assert ran.exit_code == 130
    summary = json.loads(Path("made/summary.json").read_text())
    assert [(one["tool"], one["why"]) for one in summary["tools"]] == [("chrome", "interrupted")]
    os.remove("made/summary.json")
    assert invoke("profile", "--read", "made").exit_code == 1
    figures = json.loads(Path("made/summary.json").read_text())["figures"]
    assert ("time of a call", 2e-3) in {(one["name"], one["value"]) for one in figures}


def test_a_script_that_crashes_in_its_own_process():
    Path("train.py").write_text("import torch; torch.layer_norm(torch.ones(2, 8), (8,)); 1 / 0")
    ran = invoke("profile", "--script", "train.py", "--tools", "chrome", "--out", "made")
    assert ran.exit_code == 1
    summary = json.loads(Path("made/summary.json").read_text())
    assert summary["tools"][0]["why"] == "ZeroDivisionError: division by zero; see chrome.log"
    assert [one["what"] for one in summary["norms"]] == ["aten::layer_norm"]


def test_bad_input():
    assert "name one of OPERATION" in refused("profile")
    assert "did you mean rms_norm?" in refused("profile", "rms_nrm")
    assert "name one of OPERATION" in refused("profile", "rms_norm", "--model", "llama")
    assert "--cols is for a norm" in refused("profile", "--model", "llama", "--cols", "8")
    assert "--pass is for a norm" in refused("profile", "--model", "llama", "--pass", "both")
    assert "--size and --stage" in refused("profile", "rms_norm", "--size", "tiny")
    assert "--steps is for --script" in refused("profile", "rms_norm", "--steps", "2")
    assert "does not exist" in refused("profile", "--script", "absent.py")
    assert "unknown tool 'nsys'" in refused("profile", "rms_norm", "--tools", "nsys")


def test_folders_that_cannot_be_read_again():
    Path("empty").mkdir()
    ran = invoke("profile", "--read", "empty")
    assert (ran.exit_code, "holds neither a request of rownorm profile nor CSVs" in ran.output) == (
        2,
        True,
    )
    Path("empty/request.json").write_text("{")
    ran = invoke("profile", "--read", "empty")
    assert (ran.exit_code, "cannot be read as" in ran.output) == (2, True)
    assert invoke("profile", "--read", "empty", "rms_norm").exit_code == 2


def test_the_tools_of_a_device():
    assert list(usual_tools("cuda")) == ["chrome", "proton", "ncu"]
    assert list(usual_tools("hip")) == ["chrome", "proton", "rocprofv3"]


def test_help_needs_no_torch():
    ran = without_torch("profile", "--help")
    assert ran.returncode == 0, ran.stderr
    assert "rownorm profile --script train.py" in ran.stdout
