"""One process or several: DDP, FSDP2, or tensor and sequence parallelism, started by torchrun.

Several processes train on the batch of one process, so their losses are those of one process up to the order of sums.
With DDP and FSDP2 each has a part of the samples; with tensor parallelism each has a part of every sequence.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import PARALLELS, Parallel, State


class World:
    """A single process. ``Processes`` has the same methods for several."""

    rank, size = 0, 1

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in a step, whose parameters are those of model."""
        return model

    def part_of(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The samples of a batch that this process trains on."""
        return batch

    def mean(self, loss: Tensor) -> Tensor:
        """The mean of a loss over all processes."""
        return loss

    def saved_state(self, model: State, optimizer: State) -> tuple[State, State]:
        """The state of model and optimizer by the names that they have in a single process."""
        return model, optimizer

    def own_state(self, model: State, optimizer: State) -> tuple[State, State]:
        """The reverse of ``saved_state``."""
        return model, optimizer

    def close(self) -> None:
        """Leave the group of processes."""


class Processes(World):
    """The processes that torchrun has started; this one is ``rank``. Each trains on some of the samples."""

    def __init__(self, parallel: Parallel, device: str) -> None:
        self.parallel, self.device = parallel, device
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.parallel == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        from torch.distributed.fsdp import fully_shard

        for module in list(model.modules()):
            if isinstance(module, nn.ModuleList):
                for layer in module:
                    fully_shard(layer)
        fully_shard(model)  # in place
        return model

    def part_of(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        inputs, targets = (part.chunk(self.size)[self.rank] for part in batch)
        return inputs, targets

    def mean(self, loss: Tensor) -> Tensor:
        total = loss.clone()
        dist.all_reduce(total)
        return total / self.size

    def close(self) -> None:
        dist.destroy_process_group()


class TensorProcesses(Processes):
    """Processes that share every sequence and every layer; all of them have the whole loss."""

    def wrap(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh

        from .tensor_parallel import SeparateStates, parallelize

        self._states = SeparateStates(model)
        parallelize(model, init_device_mesh(self.device, (self.size,)))  # type: ignore[arg-type]
        return model

    part_of, mean = World.part_of, World.mean

    def saved_state(self, model: State, optimizer: State) -> tuple[State, State]:
        return self._states.joined(model, optimizer)

    def own_state(self, model: State, optimizer: State) -> tuple[State, State]:
        return self._states.separated(model, optimizer)


def world_of(
    parallel: Parallel | None, device: str, task: str, config: Any, n_samples: int
) -> World:
    """The processes of this run; ValueError if there are none, or if they cannot share the model or the samples."""
    n_processes = int(os.environ.get("WORLD_SIZE", "0"))
    if parallel is None:
        if n_processes > 1:
            choices = ", ".join(f"--parallel {name}" for name in PARALLELS)
            raise ValueError(f"several processes were started; add one of {choices}")
        return World()
    if parallel == "tensor":  # first: more processes would not help a model that cannot be split
        from .tensor_parallel import check

        check(task, config, max(1, n_processes))
    if not n_processes:
        raise ValueError(
            f"--parallel {parallel} needs processes: torchrun --nproc-per-node 2 -m rownorm_lab train ..."
        )
    if parallel == "tensor":
        return TensorProcesses(parallel, device)
    if n_samples % n_processes:
        raise ValueError(
            f"{n_samples} samples cannot be shared by {n_processes} processes; "
            f"start a number that divides {n_samples}, or choose another --samples"
        )
    return Processes(parallel, device)
