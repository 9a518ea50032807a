"""A workload: one stage of a model in one setting, which trains on one batch again and again.

    eager       bf16 parameters on a GPU, fp32 on a CPU
    autocast    fp32 parameters under ``torch.autocast`` in bf16
    compiled    as eager; the repeated blocks of the model go through torch.compile

All blocks of a model share the code that is compiled once, which takes a fraction of the time for the whole model. A
block begins with the norm that adds the last update, so between blocks there is nothing to fuse. Embedding, last norm,
head and loss stay eager.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..measure.timing import peak_bytes
from . import Stage
from .parallel import World
from .ranges import norm_ranges
from .trainer import Trainer, TrainingRequest

SEED = 0


class Workload:
    """A model with an optimizer and one batch on the device. device: "cuda" or "cpu"; samples: None: of the size."""

    def __init__(
        self,
        task: str,
        size: str,
        stage: Stage,
        setting: str,
        device: str,
        samples: int | None = None,
    ) -> None:
        self.setting, self.device = setting, device
        amp = "bf16" if setting == "autocast" else None
        dtype = torch.bfloat16 if device == "cuda" and amp is None else None
        request = TrainingRequest(task, size, stage, SEED, amp, samples)
        self.trainer = Trainer(request, World(), device, dtype=dtype)
        self.batch = self.trainer.batch()
        if setting == "compiled":
            # Without it the generated kernels of a CPU have no entry in a profile.
            options = {"cpp.enable_kernel_profile": True} if device == "cpu" else None
            for block in repeated_blocks(self.trainer.model):
                block.compile(dynamic=False, options=options)

    @property
    def precision(self) -> str:
        """Of the arithmetic: ``bf16``, ``fp32`` or ``autocast bf16``."""
        if self.setting == "autocast":
            return "autocast bf16"
        return "bf16" if self.device == "cuda" else "fp32"

    def step(self, mark: Callable[[], None] = lambda: None) -> Tensor:
        """One training step; returns the loss. mark: called before, between and after forward, backward, update."""
        return self.trainer.train_on(*self.batch, mark)

    def peak_bytes(self) -> int:
        """The most memory that training takes: parameters, optimizer, batch, and the peak of a step beyond them.

        Models of other stages do not count, even if they are on the same device.
        """
        optimizer = self.trainer.optimizer
        optimizer.zero_grad(set_to_none=True)
        states = [value for state in optimizer.state.values() for value in state.values()]
        model = self.trainer.model
        kept = (
            *model.parameters(),
            *model.buffers(),
            *self.batch,
            *filter(torch.is_tensor, states),
        )
        return sum(
            tensor.nbytes for tensor in kept if tensor.device.type == self.device
        ) + peak_bytes(self.step, self.device == "cuda")


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a model that are alike: the members of its lists of modules."""
    lists = (child for child in model.children() if isinstance(child, nn.ModuleList))
    return [block for blocks in lists for block in blocks]


def run_under(
    profiler: AbstractContextManager[Any],
    workload: Workload,
    n_steps: int = 1,
    restart: Callable[[], None] | None = None,
) -> None:
    """Run training steps while a profiler is active, after one step without it.

    profiler: a ``torch.profiler.profile``, or any other context manager. In eager code every norm, forward and
    backward, is inside a range called ``ranges.NORM``. restart: if given, one more step runs first and this is called
    after it, because the first step under a profiler is slower.
    """
    with norm_ranges(workload.trainer.model, enabled=workload.setting != "compiled"):
        workload.step()
        _synchronize(workload.device)
        with profiler:
            if restart is not None:
                workload.step()
                restart()
            for _ in range(n_steps):
                workload.step()
            _synchronize(workload.device)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
