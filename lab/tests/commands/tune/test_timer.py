"""The check of candidates, with real kernels: in Triton's interpreter, or on a GPU; and which rounds count."""

import pytest
import torch

from rownorm_lab.commands.tune import study as study_module
from rownorm_lab.commands.tune.study import TuningCase
from rownorm_lab.commands.tune.timer import checked, steady

RESIDENT = {"regime": "resident", "block_rows": 1, "block_cols": 64, "num_warps": 1}
CASES = [
    (TuningCase("forward", False, torch.float32, 64), RESIDENT),
    (
        TuningCase("forward", True, torch.bfloat16, 96, torch.float32),
        {**RESIDENT, "block_cols": 128},
    ),
    (
        TuningCase("forward", True, torch.float32, 160, None, "gelu"),
        {**RESIDENT, "regime": "looped"},
    ),
    (
        TuningCase("backward", False, torch.bfloat16, 64, None, "pre_bias"),
        {**RESIDENT, "num_stages": 1},
    ),
    (TuningCase("backward", True, torch.float32, 64, torch.float32), RESIDENT),
    (TuningCase("backward", True, torch.bfloat16, 64, torch.float32, "activation"), RESIDENT),
]


@pytest.mark.parametrize(("study", "settings"), CASES)
def test_correct_settings_pass(study, settings, device):
    assert checked(study, [settings], device, n_rows=6) == [("ok", "")]


def test_each_setting_is_judged_by_itself(device, monkeypatch):
    study = TuningCase("forward", False, torch.float32, 64)
    forward = study_module.execute.forward
    calls = []

    def sometimes_wrong(*arguments):
        y, *rest = forward(*arguments)
        calls.append(y)
        if len(calls) == 2:
            y[3, 5] *= 1.001
        if len(calls) == 3:
            raise RuntimeError("out of resources: shared memory")
        return y, *rest

    monkeypatch.setattr(study_module.execute, "forward", sometimes_wrong)
    good, wrong, failed, again = checked(study, [RESIDENT] * 4, device, n_rows=6)
    assert good == again == ("ok", "")
    assert wrong[0] == "wrong"
    assert "y is off by" in wrong[1]
    assert failed == ("failed", "RuntimeError: out of resources: shared memory")


def test_a_kernel_that_writes_nothing_is_wrong(device, monkeypatch):
    """Memory that it got may hold the right results of the settings before."""
    study = TuningCase("forward", False, torch.float32, 64)

    def writes_nothing(x, *_):
        return torch.empty_like(x), None, None, None

    monkeypatch.setattr(study_module.execute, "forward", writes_nothing)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        [(status, why)] = checked(study, [RESIDENT], device, n_rows=6)
        assert not torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before
    assert (status, why) == ("wrong", "y has values that are not finite")


def test_the_first_rounds_do_not_count():
    rounds = iter([9.0, 9.0, 9.0, 1.0, 3.0, 2.0])
    assert steady(lambda: next(rounds), 3) == 2.0
    assert next(rounds, None) is None
