"""``rownorm steps``: a trial run on this machine, and the arithmetic of its ratios."""

import json

import pytest
import torch

from rownorm.lab.steps import calls, models, training
from support.lab_commands import invoke

pytestmark = [
    pytest.mark.usefixtures("without_interpreter"),
    pytest.mark.filterwarnings(
        "ignore:Mismatch dtype between input and weight"
    ),  # of torch's RMSNorm
]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(training, "WARM_UP", 0)
    monkeypatch.setattr(calls, "ROUNDS", 1)
    monkeypatch.setattr(calls, "CALLS", 1)
    monkeypatch.setattr(calls, "SHAPE", (2, 16))
    monkeypatch.setattr(models, "TINY", models.Size(8, 1, 2, 1, 2))
    monkeypatch.setattr(training, "TINY", models.Size(8, 1, 2, 1, 2))


def test_a_trial_run(tmp_path):
    file = tmp_path / "steps.json"
    ran = invoke("steps", "--tiny", "--steps", "1", "--out", file)
    assert ran.exit_code == 0, ran.output
    results = json.loads(file.read_text())
    assert len(results["training"]) == len(models.SIZES) * len(training.SETTINGS)
    settings = {(one["setting"], one["direction"]) for one in results["calls"]}
    assert settings == {(s, d) for d in calls.BARS for s in calls.settings_of(d)}
    again = invoke("steps", "--tiny", "--out", file)
    assert again.exit_code == 2
    assert "exists" in again.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    ran = invoke("steps")
    assert ran.exit_code == 2
    assert "--tiny" in ran.output


@pytest.mark.parametrize("kind", list(models.SIZES))
def test_the_three_kinds_of_norms_compute_the_same(kind):
    tokens = torch.randint(models.VOCABULARY, (2, 3))
    outputs = []
    for norms in training.NORMS:
        torch.manual_seed(0)
        model = models.Model(kind, models.TINY, norms)
        y = model(tokens)
        y.square().sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        outputs.append(y.detach())
    for y in outputs[1:]:
        torch.testing.assert_close(y, outputs[0], rtol=1e-4, atol=1e-5)


def test_ratios():
    one = training.StepRecord(
        model="llama",
        setting="bf16",
        seconds={"torch": [2.0, 4.0, 3.0], "rownorm": [1.0, 4.0, 2.0], "rownorm add": [1.0] * 3},
        host_seconds={},
        bars={"rownorm": 1.5, "rownorm add": 3.0},
    )
    assert (one.ratio("rownorm"), one.ratio("rownorm add"), one.holds) == (1.5, 3.0, True)
    slow = calls.CallRecord(
        norm="rms_norm", setting="plain", direction="forward", torch=[1.0], rownorm=[1.2]
    )
    assert (slow.ratio, slow.bar, slow.holds) == (1.2, 1.1, False)
