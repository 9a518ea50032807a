"""Tensor and sequence parallelism: two processes give the logits and gradients of one, and bad input is refused."""

import pytest

from rownorm.lab.train import tasks
from rownorm.lab.train.tensor_parallel import check
from support import tensor_parallel
from support.lab_commands import refused
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
