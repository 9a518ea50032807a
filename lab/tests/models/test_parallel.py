"""Two processes on a CPU give the losses of one, and their checkpoints are those of one."""

import os
import subprocess
import sys

import pytest
import torch

from lab_support.lab_commands import invoke

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("command_line")]


def torchrun(*arguments):
    """``rownorm train`` in two processes with gloo."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ran = subprocess.run(
        [*launcher, "-m", "rownorm_lab", "train", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def losses_in(folder):
    return torch.load(f"{folder}/checkpoint.pt", weights_only=True)["losses"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="one process would run on the GPU")
@pytest.mark.parametrize(
    ("task", "parallel"),
    [(task, parallel) for task in ("llama", "openfold") for parallel in ("ddp", "fsdp")]
    + [("llama", "tensor")],
)
def test_two_processes_train_as_one(task, parallel):
    assert invoke("train", task, "--steps", 4, "--out", "one").exit_code == 0
    printed = torchrun(task, "--steps", 2, "--parallel", parallel, "--out", "two")
    assert "2 processes" in printed
    assert printed.count("saved") == 1
    torchrun(task, "--steps", 3, "--parallel", parallel, "--resume", "two")
    assert invoke("train", task, "--steps", 4, "--resume", "two").exit_code == 0
    assert losses_in("two") == pytest.approx(losses_in("one"), rel=1e-4)
