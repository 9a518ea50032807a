"""Checkpoints: whole or not at all, and a reason for every file that cannot be used."""

import os

import pytest
import torch

from rownorm_lab.models import checkpoint
from rownorm_lab.models.parallel import World
from rownorm_lab.models.tasks import TASKS, Budget
from rownorm_lab.models.trainer import Trainer, TrainingRequest

pytestmark = pytest.mark.usefixtures("without_interpreter")


@pytest.fixture
def trainer(monkeypatch):
    monkeypatch.setitem(TASKS["llama"].budgets, "tiny", Budget(2, 3e-3))
    made = Trainer(TrainingRequest("llama", "tiny", "rownorm", seed=0), World(), "cpu")
    made.step()
    return made


def test_what_it_has(trainer, tmp_path):
    checkpoint.save(trainer, tmp_path)
    read = checkpoint.load(tmp_path)
    assert read.request == trainer.request
    assert read.config["width"] == trainer.config.width
    assert (read.step_number, read.losses) == (1, trainer.losses)
    assert read.model.keys() == trainer.model.state_dict().keys()


def test_a_full_disk_leaves_the_old_checkpoint(trainer, tmp_path, full_disk):
    path = checkpoint.save(trainer, tmp_path)
    before = path.read_bytes()
    trainer.step()
    full_disk(path)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(trainer, tmp_path)
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_bytes() == before


def test_files_that_cannot_be_read(trainer, tmp_path):
    with pytest.raises(
        ValueError, match=r"has no checkpoint\.pt; name a folder that rownorm train"
    ):
        checkpoint.load(tmp_path)
    path = checkpoint.save(trainer, tmp_path)
    content = torch.load(path, weights_only=True)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be read: "):
        checkpoint.load(tmp_path)
    torch.save(content | {"format": 0}, path)
    with pytest.raises(ValueError, match="another version of rownorm"):
        checkpoint.load(tmp_path)


def test_other_dimensions(trainer, tmp_path, monkeypatch):
    """The table of sizes has changed since the checkpoint was written."""
    checkpoint.save(trainer, tmp_path)
    monkeypatch.setitem(TASKS["llama"].configs, "tiny", TASKS["llama"].configs["small"])
    with pytest.raises(ValueError, match=r"width 64 there, 512 here.*train from the start"):
        checkpoint.load(tmp_path)
