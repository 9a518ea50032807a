"""``rownorm train``: the loss falls, a resumed run has the same losses, bad input is refused."""

import re

import pytest
import torch

from lab_support.lab_commands import invoke, refused
from rownorm_lab.commands.train import command
from rownorm_lab.models import STAGES, checkpoint, parallel, tasks
from rownorm_lab.models.data import unigram_entropy
from support.known_warnings import IGNORE_ONEDNN

pytestmark = pytest.mark.usefixtures("command_line")
FAST = {
    "llama": tasks.Budget(4, 3e-3),
    "openfold": tasks.Budget(2, 3e-3),
    "dit": tasks.Budget(2, 3e-3),
}


@pytest.fixture
def small_batches(monkeypatch):
    for name, budget in FAST.items():
        monkeypatch.setitem(tasks.TASKS[name].budgets, "tiny", budget)


def train(*arguments):
    """Run the command, which must succeed, and return what it printed."""
    ran = invoke("train", *arguments)
    assert ran.exit_code == 0, ran.output
    return ran.output


def losses_in(folder):
    return torch.load(f"{folder}/checkpoint.pt", weights_only=True)["losses"]


def test_names():
    assert tuple(tasks.TASKS) == command.TASKS
    assert command.STAGES == STAGES
    assert command.PARALLELS == parallel.PARALLELS
    for task in tasks.TASKS.values():
        assert tuple(task.configs) == tuple(task.budgets) == command.SIZES


def test_the_loss_falls_below_the_unigram_entropy():
    printed = train("llama", "--steps", 25, "--every", 10)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert re.findall(r"step +(\d+)/25", printed) == ["1", "10", "20", "25"]
    assert len(re.findall(r"  [\d,]+(?:\.\d)? tokens/s", printed)) == 4
    assert losses[-1] < 0.5 * unigram_entropy(tasks.TASKS["llama"].configs["tiny"]) < losses[0]


@pytest.mark.parametrize("name", list(tasks.TASKS))
def test_a_resumed_run_has_the_same_losses(name, small_batches):
    train(name, "--steps", 4, "--out", "whole", "--seed", 3)
    train(name, "--steps", 2, "--out", "part", "--seed", 3)
    assert len(losses_in("part")) == 2
    train(name, "--steps", 4, "--resume", "part")
    assert losses_in("part") == losses_in("whole")
    whole, part = (checkpoint.load(command.Path(folder)) for folder in ("whole", "part"))
    assert all(part.model[n].equal(tensor) for n, tensor in whole.model.items())


def test_checkpoints_during_a_run(small_batches, monkeypatch):
    """An interrupted run resumes from the last checkpoint."""
    train("llama", "--steps", 5, "--out", "whole")
    original = tasks.Task.batch

    def interrupted(self, size, n_samples, seed, step):
        if step == 3:
            raise KeyboardInterrupt
        return original(self, size, n_samples, seed, step)

    monkeypatch.setattr(tasks.Task, "batch", interrupted)
    assert invoke("train", "llama", "--steps", 5, "--save-every", 2, "--out", "part").exit_code != 0
    assert losses_in("part") == losses_in("whole")[:2]
    monkeypatch.setattr(tasks.Task, "batch", original)
    train("llama", "--steps", 5, "--resume", "part")
    assert losses_in("part") == losses_in("whole")


def test_a_checkpoint_continues_in_another_stage(small_batches):
    train("llama", "--steps", 2, "--out", "made", "--stage", "rownorm")
    train("llama", "--steps", 4, "--out", "whole", "--stage", "rownorm")
    printed = train("llama", "--steps", 4, "--resume", "made", "--stage", "baseline")
    assert "resumes llama tiny, stage rownorm, fp32, seed 0" in printed
    assert "llama tiny, stage baseline, fp32, seed 0" in printed
    assert losses_in("made") == pytest.approx(losses_in("whole"), rel=1e-5)


def test_resuming_into_another_folder(small_batches):
    train("llama", "--steps", 1, "--out", "first")
    train("llama", "--steps", 2, "--resume", "first", "--out", "second")
    assert (len(losses_in("first")), len(losses_in("second"))) == (1, 2)
    assert "nothing to do: 2 steps are done" in train("llama", "--steps", 2, "--resume", "second")


@IGNORE_ONEDNN
def test_amp(small_batches):
    train("llama", "--steps", 2, "--samples", 1, "--out", "fp32")
    printed = train("llama", "--steps", 2, "--samples", 1, "--amp", "bf16", "--out", "bf16")
    assert "autocast bf16" in printed
    assert losses_in("bf16") == pytest.approx(losses_in("fp32"), rel=0.02)
    assert losses_in("bf16") != losses_in("fp32")
    assert checkpoint.load(command.Path("bf16")).model["head.weight"].dtype == torch.float32


def test_compile(small_batches, monkeypatch):
    """The compiled model is what runs; the compiler itself is PyTorch's."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    train("llama", "--steps", 1, "--compile")
    assert len(compiled) == 1


def test_samples(monkeypatch):
    sizes, original = [], tasks.Task.batch
    monkeypatch.setattr(
        tasks.Task, "batch", lambda self, *a: sizes.append((a[1], a[3])) or original(self, *a)
    )
    train("llama", "--steps", 2, "--samples", 3, "--out", "made")
    train("llama", "--steps", 3, "--resume", "made")
    assert sizes == [(3, 0), (3, 1), (3, 2)]


def test_deterministic(small_batches):
    torch.use_deterministic_algorithms(False)
    train("llama", "--steps", 1, "--deterministic")
    assert torch.are_deterministic_algorithms_enabled()


def test_a_loss_that_is_not_finite(small_batches, monkeypatch):
    monkeypatch.setitem(tasks.TASKS["llama"].budgets, "tiny", tasks.Budget(4, 1e30))
    ran = invoke("train", "llama", "--steps", 3, "--out", "made")
    assert ran.exit_code == 1
    assert "the loss is nan after step 3; this state is not saved" in ran.output
    assert not command.Path("made").exists()


# ---- bad input ----


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["alpaca"], "llama"),
        (["llama", "--stage", "fast"], "fused"),
        (["llama", "--steps", "0"], "x>=1"),
        (["llama", "--resume", "nowhere"], "does not exist"),
        (["llama", "--parallel", "ddp"], "torchrun --nproc-per-node 2"),
    ],
)
def test_bad_input(arguments, expected):
    assert expected in refused("train", *arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["llama", "--out", "made"], "--resume continues the run in it"),
        (["openfold", "--resume", "made"], "the checkpoint has task llama, not openfold"),
        (["llama", "--resume", "made", "--size", "small"], "has size tiny, not small; resume with"),
        (["llama", "--resume", "made", "--seed", "1"], "the checkpoint has seed 0, not 1"),
        (["llama", "--resume", "made", "--samples", "5"], "the checkpoint has samples 4, not 5"),
    ],
)
def test_what_a_checkpoint_does_not_fit(arguments, expected, small_batches):
    train("llama", "--steps", 1, "--out", "made")
    before = command.Path("made/checkpoint.pt").read_bytes()
    ran = invoke("train", *arguments)
    assert ran.exit_code == 2
    assert expected in " ".join(ran.output.split())
    assert command.Path("made/checkpoint.pt").read_bytes() == before


def test_processes_without_parallel(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "add one of --parallel ddp" in refused("train", "llama")


def test_a_batch_that_cannot_be_shared(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    message = refused("train", "llama", "--parallel", "fsdp")
    assert "16 samples cannot be shared by 3 processes" in " ".join(message.split())
