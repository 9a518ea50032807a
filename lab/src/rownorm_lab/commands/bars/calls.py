"""What one eager call costs the host, beside torch's function, in the settings in which training code calls a norm.

The rows are few, so the device has finished long before the host has launched the next call.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

import rownorm
from rownorm import nn as ours_nn

from ...data.case import Case
from ...data.records import OURS
from ...measure.timing import HOST_CALLS, host_seconds
from .workload import Call, Workload


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
# Dimensions before the rows, which they divide.
LEADING = {"module, 3-D": (2,), "module, 4-D": (2, 2)}


def calls_of(case: Case, providers: Sequence[str], device: str) -> Mapping[str, Call]:
    """The calls of torch and of rownorm."""
    return {name: call_of(case, name == OURS, device) for name in providers}


def call_of(case: Case, is_ours: bool, device: str) -> Call:
    """One call, forward alone or with backward."""
    trains, setting, dtype = case.direction != "forward", case.setting, case.torch_dtype
    parameter_dtype = torch.float32 if setting.startswith("autocast") else dtype
    leading = LEADING.get(setting, ())
    shape = (*leading, case.rows // math.prod(leading), case.cols)
    x = torch.randn(shape, dtype=dtype, device=device, requires_grad=trains)
    values = torch.ones(case.cols, dtype=parameter_dtype, device=device)
    weight = Parameter(values, requires_grad=trains)
    bias = Parameter(values * 0, requires_grad=trains) if case.has_bias else None
    function = _function(case, weight, bias, is_ours)

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
    case: Case, weight: Parameter, bias: Parameter | None, is_ours: bool
) -> Callable[[Tensor], Tensor]:
    shape, eps = weight.shape, case.eps
    if case.setting.startswith("module"):
        namespace: Any = ours_nn if is_ours else torch.nn
        module = getattr(namespace, "LayerNorm" if case.centers else "RMSNorm")(shape, eps=eps)
        module.weight = weight
        if bias is not None:
            module.bias = bias
        called: Callable[[Tensor], Tensor] = module
        return called
    if case.centers:
        if is_ours:
            return lambda x: rownorm.layer_norm(x, weight, bias, eps=eps)
        return lambda x: F.layer_norm(x, shape, weight, bias, eps)
    if is_ours:
        return lambda x: rownorm.rms_norm(x, weight, eps=eps)
    return lambda x: F.rms_norm(x, shape, weight, eps)


WORKLOAD = Workload(
    calls_of,
    lambda call, repeats, _: (None, host_seconds(call, repeats)),
    lambda case, device: CONTEXTS[case.setting](device),
    rounds=25,
    warm_up=2,  # they compile
    repeats=lambda _: HOST_CALLS,
)
