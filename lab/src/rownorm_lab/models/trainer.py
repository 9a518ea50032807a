"""One training run: model, optimizer, step after step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Stage
from .parallel import World
from .tasks import TASKS, Task

WARM_UP = 20  # steps until the learning rate is reached
LARGEST_GRADIENT = 1.0  # the norm of all gradients is at most this


class TrainingRequest(NamedTuple):
    """What is trained, and how. A checkpoint has it."""

    task: str
    size: str
    stage: Stage
    seed: int
    amp: str | None = None  # "bf16": fp32 parameters under autocast
    samples: int | None = None  # of a step, over all processes; None: those of the task's budget

    @property
    def n_samples(self) -> int:
        """The samples of a step, over all processes."""
        return self.samples or TASKS[self.task].budgets[self.size].n_samples

    def describe(self) -> str:
        """One line for a person."""
        precision = "fp32" if self.amp is None else f"autocast {self.amp}"
        return f"{self.task} {self.size}, stage {self.stage}, {precision}, seed {self.seed}"


class Trainer:
    """A model in training. ``step_number`` steps are done; ``losses`` has the loss of each."""

    def __init__(
        self,
        request: TrainingRequest,
        world: World,
        device: str,
        compiled: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        """dtype: of the parameters; None: fp32."""
        self.request, self.world, self.device = request, world, device
        self.task: Task = TASKS[request.task]
        self.config = self.task.configs[request.size]
        self.learning_rate = self.task.budgets[request.size].learning_rate
        torch.manual_seed(request.seed)
        self.model = self.task.model(self.config, request.stage).to(device, dtype)
        run: nn.Module = world.wrap(self.model)
        self.run: Any = torch.compile(run) if compiled else run
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            fused=device == "cuda",
        )
        self.step_number = 0
        self._losses: list[float | Tensor] = []

    def step(self) -> None:
        """Train on the next batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * min(1.0, (self.step_number + 1) / WARM_UP)
        loss = self.train_on(*self.batch())
        self._losses.append(self.world.mean(loss))
        self.step_number += 1

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the next step, this process's part of them, on the device."""
        request = self.request
        batch = self.task.batch(request.size, request.n_samples, request.seed, self.step_number)
        inputs, targets = self.world.part_of(batch)
        return inputs.to(self.device), targets.to(self.device)

    def train_on(
        self, inputs: Tensor, targets: Tensor, mark: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Forward with loss, backward, update; returns the loss. mark: called before, between and after the three."""
        self.optimizer.zero_grad(set_to_none=True)
        mark()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.request.amp == "bf16"):
            logits = self.run(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        mark()
        loss.backward()
        mark()
        nn.utils.clip_grad_norm_(self.model.parameters(), LARGEST_GRADIENT)
        self.optimizer.step()
        mark()
        return loss.detach()

    @property
    def losses(self) -> list[float]:
        """The loss of every step so far. Reading it waits for the device, so it is not read in every step."""
        self._losses = [float(loss) for loss in self._losses]
        return self._losses  # type: ignore[return-value]

    @losses.setter
    def losses(self, values: list[float]) -> None:
        self._losses = list(values)

    def units(self, n_steps: int) -> int:
        """The tokens or samples of so many steps, over all processes."""
        return n_steps * self.request.n_samples * self.task.units_of(self.config)
