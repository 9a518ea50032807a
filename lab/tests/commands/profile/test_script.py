"""A user's script under the profiler: which steps are recorded, arguments, crashes, what rownorm would save."""

import contextlib
import io
import sys

import pytest

from rownorm_lab.commands.profile.script import read_outcome, run_script
from rownorm_lab.commands.profile.summary import summarize
from rownorm_lab.data.profiles import ToolResult
from rownorm_lab.device.environment import environment
from rownorm_lab.profilers import chrome
from rownorm_lab.profilers.norms import found_norms
from rownorm_lab.profilers.request import ProfileRequest, Script

TRAIN = """
import sys, torch
from pathlib import Path
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    if step == int(sys.argv[2]):
        raise ValueError("planted")
Path("finished").touch()
"""


@pytest.fixture
def run(command_line, monkeypatch, tmp_path):
    """Run a script in this process, as the process of the work does."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def of(text, *arguments, steps=3):
        file = tmp_path / "script.py"
        file.write_text(text)
        return run_script(Script(str(file), list(arguments), steps), "chrome", tmp_path)

    return of


def forwards(folder):
    timed = chrome.after_restart(chrome.parse(folder / "script_profile.json"))
    return sum(one["name"] == "aten::layer_norm" for one in timed)


def test_steps_after_the_first_are_recorded_and_end_the_script(run, tmp_path):
    assert run(TRAIN, "10", "-1") == 0
    assert read_outcome(tmp_path).steps == 3
    assert forwards(tmp_path) == 3
    assert not (tmp_path / "finished").exists()


def test_all_of_a_script(run, tmp_path):
    assert run(TRAIN, "5", "-1", steps=0) == 0
    assert read_outcome(tmp_path).steps == 5
    assert forwards(tmp_path) == 5
    assert (tmp_path / "finished").exists()


def test_a_crash_keeps_what_was_recorded(run, tmp_path, capsys):
    assert run(TRAIN, "10", "2") == 1
    outcome = read_outcome(tmp_path)
    assert (outcome.steps, outcome.error) == (2, "ValueError: planted")
    assert forwards(tmp_path) == 2
    assert "ValueError: planted" in capsys.readouterr().err


def test_a_crash_in_the_first_step(run, tmp_path):
    assert run("import torch; torch.layer_norm(torch.ones(2, 8), (8,)); 1 / 0") == 1
    assert forwards(tmp_path) == 1


def test_a_crash_inside_a_norm(run, tmp_path):
    text = """
import torch
class TinyNorm(torch.nn.Module):
    def forward(self, x):
        torch.layer_norm(x, (8,))
        raise RuntimeError("planted")
TinyNorm()(torch.ones(2, 8))
"""
    assert run(text) == 1
    [norm] = found_norms(chrome.parse(tmp_path / "script_profile.json"), 1).norms
    assert (norm.what, norm.direction) == ("TinyNorm", "forward")


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("3", 3), ("'words'", 1), ("None", 0)])
def test_a_script_that_exits(run, tmp_path, code, status):
    text = f"import sys, torch; torch.layer_norm(torch.ones(2, 8), (8,)); sys.exit({code})"
    assert run(text) == status
    assert forwards(tmp_path) == 1
    assert bool(read_outcome(tmp_path).error) == bool(status)


def test_a_script_is_named_as_python_names_it(run, tmp_path, monkeypatch):
    """``__file__`` is absolute: Triton writes the path of a kernel's source into its debug information."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("print(__file__)")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run_script(Script("script.py"), "chrome", tmp_path) == 0
    assert printed.getvalue().strip() == str(tmp_path / "script.py")


def test_no_norm_in_a_script(run, tmp_path):
    run("import torch; torch.ones(3).sum()")
    request = ProfileRequest(script=Script(str(tmp_path / "script.py")))
    profile = summarize(request, tmp_path, [ToolResult("chrome", "ok")], environment())
    assert profile.norms == []
    assert profile.figure("kernel time share of norms", "script") is None
    assert "No norm was found" in profile.advice[0]


def test_a_process_that_was_killed(tmp_path):
    assert "ended before" in read_outcome(tmp_path).error


def test_the_summary_has_the_share_of_norms_and_what_rownorm_would_save(run, tmp_path):
    run(TRAIN, "10", "-1")
    request = ProfileRequest(script=Script(str(tmp_path / "script.py")))
    here = environment()
    profile = summarize(request, tmp_path, [ToolResult("chrome", "ok")], here)
    share = profile.figure("kernel time share of norms", "script")
    assert 0 < share.value < 1
    assert "script_profile.json" in share.source
    assert {(one.what, one.direction, one.calls) for one in profile.norms} == {
        ("F.layer_norm", "forward", 1),
        ("F.layer_norm", "backward", 1),
    }
    for one in profile.norms:
        assert (one.case.rows, one.case.cols, one.case.dtype) == (4, 16, "fp32")
        assert one.rownorm_seconds > 0
        assert one.source.startswith("measured here")
    saved = sum(one.seconds - one.rownorm_seconds for one in profile.norms)
    total = sum(one.seconds for one in profile.kernels["script"])
    figure = profile.figure("share that rownorm would save", "script")
    assert figure.value == pytest.approx(saved / total)
    assert any("rownorm" in line and "save" in line for line in profile.advice)
