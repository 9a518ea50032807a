"""The process of the work: a training step of a model, and the traces and times that it leaves."""

import json
import sys

import pytest

from rownorm_lab.commands.profile import work
from rownorm_lab.commands.profile.summary import summarize
from rownorm_lab.data.profiles import ToolResult, share_of_norms
from rownorm_lab.device.environment import environment
from rownorm_lab.models import tasks
from rownorm_lab.profilers.request import ModelStep, ProfileRequest, write_request


def test_a_step_of_a_model(command_line, monkeypatch, tmp_path):
    monkeypatch.setitem(tasks.TASKS["llama"].budgets, "tiny", tasks.Budget(1, 3e-3))
    monkeypatch.setattr(sys, "argv", ["work", str(tmp_path), "chrome"])
    request = ProfileRequest(model=ModelStep("llama", "tiny", "baseline"))
    write_request(tmp_path, request)
    work.main()
    times = json.loads((tmp_path / "host.json").read_text())
    assert all(0 < times[one]["host"] <= times[one]["whole"] for one in ("rownorm", "torch"))
    profile = summarize(request, tmp_path, [ToolResult("chrome", "ok")], environment())
    for subject in ("rownorm", "torch"):
        share = profile.figure("kernel time share of norms", subject).value
        assert share == pytest.approx(share_of_norms(profile.kernels[subject]))
        assert 0 < share < 1
    names = {one.name for one in profile.kernels["rownorm"] if one.is_norm}
    assert any(name.startswith("rownorm::") or "forward_" in name for name in names)
    others = {one.name for one in profile.kernels["torch"]}  # the stage baseline: op by op
    assert not any("rms_norm" in name for name in others)
