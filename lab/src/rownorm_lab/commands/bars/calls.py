"""What one eager call costs the host: in the settings in which training code calls a norm, beside torch's function; and
with a modulation or a gate, beside rownorm's call of the plain norm.

The rows are few, so the device has finished long before the host has launched the next call. The two take turns,
because a host is a third slower at one moment than at another.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
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
from ...providers import all_providers, data
from .figures import plain_of
from .settings import PLAIN
from .workload import Call, Workload, nothing_around


def _autocast(dtype: torch.dtype) -> Callable[[str], Any]:
    return lambda device: torch.autocast(device, dtype)


def _nothing(device: str) -> Any:
    return contextlib.nullcontext()


# Settings that are a context around the call, by name.
CONTEXTS: dict[str, Callable[[str], Any]] = {
    "plain": _nothing,
    "autocast bf16": _autocast(torch.bfloat16),
    "autocast fp16": _autocast(torch.float16),
    "default device": torch.device,
    "profiler": lambda device: torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU]
    ),
    "saved-tensor hooks": lambda device: torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t
    ),
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
    if not trains:
        return lambda: function(x)
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
        return module
    if case.centers:
        if is_ours:
            return lambda x: rownorm.layer_norm(x, weight, bias, eps=eps)
        return lambda x: F.layer_norm(x, shape, weight, bias, eps)
    if is_ours:
        return lambda x: rownorm.rms_norm(x, weight, eps=eps)
    return lambda x: F.rms_norm(x, shape, weight, eps)


def forms_of(case: Case, providers: Sequence[str], device: str) -> Mapping[str, Call]:
    """The call of a case with a modulation or a gate, and that of the plain norm of its shape."""
    ours, cases = all_providers()[OURS], {OURS: case, PLAIN: plain_of(case)}
    alone = {name: msgspec.structs.replace(cases[name], setting="") for name in providers}
    return {
        name: ours.prepare(one, data.rotation(one, 1, device)[0]) for name, one in alone.items()
    }


WORKLOAD = Workload(
    calls_of,
    lambda call, repeats, _: (None, host_seconds(call, repeats)),
    lambda case, device: CONTEXTS[case.setting](device),
    rounds=25,
    warm_up=2,  # they compile
    repeats=lambda _: HOST_CALLS,
)
FORMS = WORKLOAD._replace(calls=forms_of, context=nothing_around)
