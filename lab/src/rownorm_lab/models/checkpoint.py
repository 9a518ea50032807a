"""The state of a training run on disk: written whole or not at all, and enough to continue with the same losses.

The parameters are those of one process, whatever number of processes trained them, and every stage can load them.
"""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from ..data.files import write_whole
from .tasks import TASKS
from .trainer import Trainer, TrainingRequest

FILE = "checkpoint.pt"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What the file has. model, optimizer: state by the names of parameters; config: the fields of the model's."""

    request: TrainingRequest
    config: dict[str, Any]
    step_number: int
    losses: list[float]
    model: dict[str, Any]
    optimizer: dict[str, Any]


def save(trainer: Trainer, folder: Path) -> Path:
    """Write the state of a run to ``folder/checkpoint.pt``. All processes must call it; the first one writes."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model, optimizer = trainer.world.saved_state(
        *get_state_dict(trainer.model, trainer.optimizer, options=options)
    )
    path = folder / FILE
    if trainer.world.rank == 0:
        content = {
            "format": FORMAT,
            "request": trainer.request._asdict(),
            "config": dataclasses.asdict(trainer.config),
            "step_number": trainer.step_number,
            "losses": trainer.losses,
            "model": model,
            "optimizer": optimizer,
        }
        # torch.save to a file hides why it cannot be written: a full disk is a RuntimeError of the zip writer.
        whole = io.BytesIO()
        torch.save(content, whole)
        write_whole(path, whole.getbuffer())
    return path


def load(folder: Path) -> Checkpoint:
    """Read ``folder/checkpoint.pt``; ValueError with the reason if that is not possible."""
    path = folder / FILE
    if not path.exists():
        raise ValueError(
            f"{folder} has no {FILE}; name a folder that rownorm train --out has written"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content.pop("format") != FORMAT:
            raise ValueError("it was written by another version of rownorm")
        checkpoint = Checkpoint(**content | {"request": TrainingRequest(**content["request"])})
    except Exception as error:  # torch.load raises errors of many types for a damaged file
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    _check_config(checkpoint)
    return checkpoint


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Continue from a checkpoint: parameters, optimizer, step and losses."""
    model, optimizer = trainer.world.own_state(checkpoint.model, checkpoint.optimizer)
    set_state_dict(
        trainer.model,
        trainer.optimizer,
        model_state_dict=model,
        optim_state_dict=optimizer,
        options=StateDictOptions(full_state_dict=True),
    )
    trainer.step_number, trainer.losses = checkpoint.step_number, checkpoint.losses


def _check_config(checkpoint: Checkpoint) -> None:
    """ValueError if the size has other dimensions now than when the checkpoint was written."""
    task, size = checkpoint.request.task, checkpoint.request.size
    now = dataclasses.asdict(TASKS[task].configs[size])
    differences = [
        f"{name} {checkpoint.config.get(name)} there, {value} here"
        for name, value in now.items()
        if checkpoint.config.get(name) != value
    ]
    if differences:
        raise ValueError(
            f"the checkpoint's {task} {size} has other dimensions ({'; '.join(differences)}); "
            "train from the start with --out"
        )
