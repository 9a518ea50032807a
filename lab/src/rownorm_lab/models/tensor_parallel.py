"""Tensor and sequence parallelism of the tiny Llama, with the styles of ``torch.distributed.tensor.parallel``.

    embedding, residual stream, norms     sharded along the sequence; the norms' weights are replicated
    attention                             each process has some of the heads
    SwiGLU                                each process has some of the hidden columns
    head                                  each process has a part of the vocabulary; the logits are gathered

So an update is gathered before its first linear layer and reduced and scattered after its last one. Adding it to the
stream and normalizing the result is local, in the stage ``rownorm`` in one kernel, through the sharding rules of the
operators. A fused projection becomes one linear layer for each of its parts, because a shard of the fused weight would
have rows of one part alone.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from . import State
from .blocks import Projections
from .tiny_llama import LlamaConfig, TinyLlama

SHARDED = ("n_kv_heads", "hidden", "vocabulary", "n_tokens")  # n_kv_heads divides n_heads


class SeparateProjections(nn.ModuleList):
    """The linear layers of a ``Projections``, one for each part of its weight."""

    def __init__(self, fused: Projections) -> None:
        super().__init__()
        for part in fused.weight.detach().split(list(fused.widths)):
            linear = nn.Linear(part.shape[1], part.shape[0], bias=False, device="meta")
            linear.weight = nn.Parameter(part.clone())
            self.append(linear)

    def forward(self, x: Tensor) -> list[Tensor]:
        """x: (..., width). One result (..., n) for each part."""
        return [linear(x) for linear in self]


class SeparateStates:
    """State by the names of parameters, with and without ``SeparateProjections``. A checkpoint is without."""

    def __init__(self, model: nn.Module) -> None:
        self._widths = {
            name: module.widths
            for name, module in model.named_modules()
            if isinstance(module, Projections)
        }

    def joined(self, model: State, optimizer: State) -> tuple[State, State]:
        """The state of a model in one process, from that of this one. Empty on all processes but the first."""
        if not model:
            return model, optimizer
        groups = [
            group | {"params": list(dict.fromkeys(map(self._joined_name, group["params"])))}
            for group in optimizer["param_groups"]
        ]
        return self._join(model), {"state": self._join(optimizer["state"]), "param_groups": groups}

    def separated(self, model: State, optimizer: State) -> tuple[State, State]:
        """The reverse of ``joined``."""
        groups = [
            group | {"params": list(self._separate(dict.fromkeys(group["params"])))}
            for group in optimizer["param_groups"]
        ]
        states = {"state": self._separate(optimizer["state"]), "param_groups": groups}
        return self._separate(model), states

    def _joined_name(self, name: str) -> str:
        """``project.weight`` for ``project.0.weight`` if project was fused, else the same name."""
        fused = name.rsplit(".", 2)[0]
        return f"{fused}.weight" if fused in self._widths else name

    def _join(self, state: State) -> State:
        parts: dict[str, list[Any]] = {}
        for name, value in state.items():
            parts.setdefault(self._joined_name(name), []).append(value)
        return {name: _cat(values) for name, values in parts.items()}

    def _separate(self, state: State) -> State:
        separate: State = {}
        for name, value in state.items():
            fused = name.removesuffix(".weight")
            if fused in self._widths:
                values = _split(value, self._widths[fused])
                separate |= {f"{fused}.{i}.weight": part for i, part in enumerate(values)}
            else:
                separate[name] = value
        return separate


def check(task: str, config: Any, n_processes: int) -> None:
    """ValueError with what to do if this model cannot be split over n_processes processes."""
    if not isinstance(config, LlamaConfig):
        raise ValueError(
            f"--parallel tensor splits the heads and the sequence of llama; for {task} use --parallel ddp or fsdp"
        )
    for name in SHARDED:
        value = getattr(config, name)
        if value % n_processes:
            raise ValueError(
                f"--parallel tensor: {name} {value} cannot be shared by {n_processes} processes; "
                f"start a number that divides {value}, or choose another --size"
            )


def parallelize(model: TinyLlama, mesh: DeviceMesh) -> None:
    """Shard a model in place over a mesh of one dimension. It takes and returns what it did, on every process."""
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
        ),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    to_stream = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    layer_plan: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.project.*": ColwiseParallel(),
        "attention.output": to_stream,
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.gate_and_up.*": ColwiseParallel(),
        "feed_forward.output": to_stream,
    }
    for layer in model.layers:
        attention: Any = layer.attention
        attention.n_heads //= mesh.size()
        attention.n_kv_heads //= mesh.size()
        attention.project = SeparateProjections(attention.project)
        feed_forward: Any = layer.feed_forward
        feed_forward.gate_and_up = SeparateProjections(feed_forward.gate_and_up)
        parallelize_module(layer, mesh, layer_plan)
    parallelize_module(model, mesh, plan)


def _cat(values: list[Any]) -> Any:
    """Tensors, or dictionaries of them, in one. The first stands for all scalars, such as the step of an optimizer."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _cat([value[key] for value in values]) for key in first}
    return torch.cat(values) if len(values) > 1 and first.ndim else first


def _split(value: Any, widths: tuple[int, ...]) -> list[Any]:
    """The reverse of ``_cat``."""
    if isinstance(value, dict):
        split = {key: _split(one, widths) for key, one in value.items()}
        return [{key: parts[i] for key, parts in split.items()} for i in range(len(widths))]
    if isinstance(value, Tensor) and value.ndim:
        return list(value.split(list(widths)))
    return [copy.deepcopy(value) for _ in widths]  # the optimizer changes its step in place
