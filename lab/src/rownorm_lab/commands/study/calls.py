"""What one eager call costs the host, beside torch's function, in the settings in which training code calls a norm.

The rows are few, so the device has finished long before the host has launched the next call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

import rownorm
from rownorm import nn as ours_nn

from ...data.judged import CallRecord
from ...data.suites import HOST_LIMITS
from ...measure.timing import HOST_CALLS, host_seconds

Norm = Literal["rms_norm", "layer_norm"]
NORMS: tuple[Norm, ...] = ("rms_norm", "layer_norm")
SHAPE = (8, 4096)
CALLS = HOST_CALLS
ROUNDS = 25
BARS = {"forward": HOST_LIMITS["forward"], "forward and backward": HOST_LIMITS["both"]}


def _autocast(dtype: torch.dtype) -> Callable[[str], Any]:
    return lambda device: torch.autocast(device, dtype)


def _profiler(device: str) -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def _hooks(device: str) -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def _nothing(device: str) -> Any:
    return contextlib.nullcontext()


# Settings that are a context around the call, by name.
CONTEXTS: dict[str, Callable[[str], Any]] = {
    "plain": _nothing,
    "autocast bf16": _autocast(torch.bfloat16),
    "autocast fp16": _autocast(torch.float16),
    "default device": torch.device,
    "profiler": _profiler,
    "saved-tensor hooks": _hooks,
    "inference mode": lambda device: torch.inference_mode(),
    "checkpoint": _nothing,
    "module, 3-D": _nothing,
    "module, 4-D": _nothing,
}
SHAPES = {"module, 3-D": (2, 4, 4096), "module, 4-D": (2, 2, 2, 4096)}


def settings_of(direction: str) -> list[str]:
    """The settings of a direction: no gradient is computed in inference mode, and a checkpoint is about gradients."""
    left_out = "checkpoint" if direction == "forward" else "inference mode"
    return [name for name in CONTEXTS if name != left_out]


def all_calls() -> list[tuple[Norm, str, str]]:
    """(norm, setting, direction) of every record of a run."""
    return [
        (norm, setting, direction)
        for direction in BARS
        for norm in NORMS
        for setting in settings_of(direction)
    ]


def conditions() -> str:
    """The shapes, and how often each call was timed."""
    shapes = [SHAPE, *SHAPES.values()]
    written = ", ".join(" x ".join(map(str, shape)) for shape in shapes)
    return f"bf16 inputs of shape {written}; {ROUNDS} rounds of {CALLS} calls"


def measure(norm: Norm, setting: str, direction: str, device: str) -> CallRecord:
    """Time rounds of calls, torch's and ours in turns."""
    theirs, ours = (
        _call(norm, setting, direction, device, is_ours=is_ours) for is_ours in (False, True)
    )
    seconds: tuple[list[float], list[float]] = ([], [])
    with CONTEXTS[setting](device):
        for turn in range(2 + ROUNDS):
            order = (0, 1) if turn % 2 else (1, 0)
            for which in order:
                taken = host_seconds((theirs, ours)[which], CALLS)
                if turn >= 2:  # the first rounds compile
                    seconds[which].append(taken)
    return CallRecord(
        norm=norm,
        setting=setting,
        direction=direction,
        torch=seconds[0],
        rownorm=seconds[1],
        bar=BARS[direction],
    )


def _call(
    norm: Norm, setting: str, direction: str, device: str, is_ours: bool
) -> Callable[[], Any]:
    trains = direction != "forward"
    shape = SHAPES.get(setting, SHAPE)
    dtype = torch.bfloat16
    parameter_dtype = torch.float32 if setting.startswith("autocast") else dtype
    x = torch.randn(shape, dtype=dtype, device=device, requires_grad=trains)
    values = torch.ones(shape[-1], dtype=parameter_dtype, device=device)
    weight = Parameter(values, requires_grad=trains)
    bias = Parameter(values * 0, requires_grad=trains) if norm == "layer_norm" else None
    function = _function(norm, setting, weight, bias, is_ours)

    def forward() -> Tensor:
        y: Tensor = function(x)
        return y

    if not trains:
        return forward
    leaves = [x, weight] if bias is None else [x, weight, bias]
    dy: Tensor | None = None

    def both() -> Any:
        nonlocal dy
        y = checkpoint(function, x, use_reentrant=False) if setting == "checkpoint" else function(x)
        if dy is None:
            dy = torch.randn_like(y)
        return torch.autograd.grad(y, leaves, dy)

    return both


def _function(
    norm: Norm, setting: str, weight: Parameter, bias: Parameter | None, is_ours: bool
) -> Callable[[Tensor], Tensor]:
    shape = weight.shape
    if setting.startswith("module"):
        namespace: Any = ours_nn if is_ours else torch.nn
        name = "RMSNorm" if norm == "rms_norm" else "LayerNorm"
        module = getattr(namespace, name)(shape, eps=1e-5)
        module.weight = weight
        if bias is not None:
            module.bias = bias
        called: Callable[[Tensor], Tensor] = module
        return called
    if norm == "rms_norm":
        if is_ours:
            return lambda x: rownorm.rms_norm(x, weight, eps=1e-5)
        return lambda x: F.rms_norm(x, shape, weight, 1e-5)
    if is_ours:
        return lambda x: rownorm.layer_norm(x, weight, bias, eps=1e-5)
    return lambda x: F.layer_norm(x, shape, weight, bias, 1e-5)
