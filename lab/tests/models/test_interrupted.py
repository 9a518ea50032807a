"""``rownorm train`` that is interrupted, or whose disk is full, keeps what there is."""

import os
import re
import signal

import pytest

from lab_support.lab_commands import invoke
from rownorm_lab.data.hold import hold
from rownorm_lab.models import checkpoint
from rownorm_lab.models.trainer import Trainer

pytestmark = pytest.mark.usefixtures("command_line")
SMALL = ("train", "llama", "--stage", "fused", "--samples", "2")


@pytest.fixture
def interrupted_at_3(monkeypatch):
    """Ctrl-C in the middle of the third step."""
    step = Trainer.step

    def one(self):
        if self.step_number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        step(self)

    monkeypatch.setattr(Trainer, "step", one)
    # A program that is started in the background ignores the signal, also the tests.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_the_state_after_the_step(interrupted_at_3, tmp_path):
    ran = invoke(*SMALL, "--steps", 5, "--out", "my run")
    assert ran.exit_code == 130, ran.output
    kept = "saved my run/checkpoint.pt, --resume 'my run' continues"
    assert f"interrupted after step 3; {kept}\n" in ran.output
    assert checkpoint.load(tmp_path / "my run").step_number == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ran = invoke(*SMALL[:2], "--steps", 4, "--resume", "my run")
    assert ran.exit_code == 0, ran.output
    assert re.search(r"steps 4 to 4", ran.output)


def test_without_a_folder_nothing_is_saved(interrupted_at_3):
    ran = invoke(*SMALL, "--steps", 5)
    assert ran.exit_code == 130
    assert "interrupted after step 3\n" in ran.output


def test_a_full_disk_is_a_message_and_keeps_the_checkpoint_before(full_disk, monkeypatch, tmp_path):
    def second_fails(trainer, folder, save=checkpoint.save):
        if trainer.step_number == 2:
            full_disk(folder / checkpoint.FILE)
        return save(trainer, folder)

    monkeypatch.setattr(checkpoint, "save", second_fails)
    ran = invoke(*SMALL, "--steps", 2, "--save-every", 1, "--out", "run")
    assert ran.exit_code == 1
    said = " ".join(ran.output.split())
    assert "checkpoint of step 2 could not be written to run: No space left on device" in said
    assert "The one before is kept: run/checkpoint.pt" in said
    assert checkpoint.load(tmp_path / "run").step_number == 1


def test_a_folder_that_another_process_writes(tmp_path):
    assert invoke(*SMALL, "--steps", 1, "--out", "run").exit_code == 0
    with hold(tmp_path / "run"):
        ran = invoke(*SMALL[:2], "--steps", 2, "--resume", "run")
    assert ran.exit_code == 2
    assert "run is in use by process" in " ".join(ran.output.split())
