"""Tensor and sequence parallelism: two processes give the logits and gradients of one, and bad input is refused."""

import pytest
import torch

from lab_support import tensor_parallel
from lab_support.lab_commands import refused
from rownorm_lab.models import tasks
from rownorm_lab.models.tensor_parallel import SeparateStates, check
from rownorm_lab.models.tiny_llama import TinyLlama
from support.ranks import run_on_ranks


@pytest.mark.parametrize("name", ["matches_one_process", "norms_do_not_communicate"])
def test_two_processes(name):
    run_on_ranks(2, getattr(tensor_parallel, name))


def test_what_cannot_be_shared():
    config = tasks.TASKS["llama"].configs["tiny"]
    check("llama", config, 2)
    with pytest.raises(ValueError, match=r"n_kv_heads 2 cannot be shared by 4 processes; start a"):
        check("llama", config, 4)


def test_openfold_is_refused(command_line, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = refused("train", "openfold", "--parallel", "tensor")
    assert "for openfold use --parallel ddp or fsdp" in " ".join(message.split())


def test_the_state_of_an_optimizer_is_separated_and_joined():
    model = TinyLlama(tensor_parallel.CONFIG)
    names = dict(model.named_parameters())
    state = {
        name: {"step": torch.tensor(3.0), "exp_avg": torch.randn_like(parameter)}
        for name, parameter in names.items()
    }
    states = SeparateStates(model)
    optimizer = {"state": state, "param_groups": [{"params": list(names), "lr": 0.1}]}
    _, separate = states.separated(dict(names), optimizer)
    parts = [separate["state"][f"layers.1.attention.project.{i}.weight"] for i in range(3)]
    assert [len(part["exp_avg"]) for part in parts] == [16, 8, 8]
    parts[0]["step"] += 1  # an optimizer counts in place
    assert parts[1]["step"] == 3
    _, joined = states.joined(dict(names), separate)
    assert joined["param_groups"] == optimizer["param_groups"]
    assert all(torch.equal(joined["state"][n]["exp_avg"], state[n]["exp_avg"]) for n in names)
