"""A GPU that is not here: a user's code runs as if there were one, with tensors that have shapes and no values.

Inside ``pretended_gpu`` torch and Triton say that there is a GPU of the target. Tensors are torch's meta tensors, on
whichever device the code wants them; they claim to be on a GPU. Nothing is computed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch.overrides import TorchFunctionMode

from rownorm.inside import Target

from .occupancy import MULTIPROCESSORS

GPU = torch.device("cuda", 0)
_DEVICE = re.compile(r"(cuda|cpu)(:\d+)?")


@contextlib.contextmanager
def pretended_gpu(target: Target) -> Iterator[None]:
    """Run user code as if this machine had a GPU of the target."""
    device = target.device
    capability = (0, 0)
    if device.arch.startswith("sm_"):
        capability = divmod(int(device.arch.removeprefix("sm_")), 10)
    properties = SimpleNamespace(
        name=f"a GPU that is not here ({device.arch})",
        multi_processor_count=device.n_sms,
        warp_size=device.warp_size,
        major=capability[0],
        minor=capability[1],
        gcnArchName=device.arch,
    )
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": capability,
        "get_device_name": properties.name,
        "synchronize": None,
        "set_device": None,
        "empty_cache": None,
    }
    before = triton.runtime.driver._active
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, _always(answer)))
        triton.runtime.driver.set_active(_Driver(target))
        stack.callback(setattr, triton.runtime.driver, "_active", before)
        stack.enter_context(torch.device("meta"))
        stack.enter_context(_OnGpu())
        yield


def _always(answer: object) -> Any:
    return lambda *arguments, **named: answer


class _OnGpu(TorchFunctionMode):
    """Tensors are made on the meta device whatever device is named, and say that they are on a GPU."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU
        if func in (torch.Tensor.cuda, torch.Tensor.cpu):
            return args[0].to("meta")
        named = {name: _on_meta(one) for name, one in (kwargs or {}).items() if name != "generator"}
        return func(*map(_on_meta, args), **named)


def _on_meta(argument: Any) -> Any:
    if isinstance(argument, torch.device):
        return torch.device("meta")
    return "meta" if isinstance(argument, str) and _DEVICE.fullmatch(argument) else argument


class _Driver:
    """What users ask Triton's driver for."""

    def __init__(self, target: Target) -> None:
        self._target = target
        device = target.device
        known = {
            "multiprocessor_count": device.n_sms,
            "max_shared_mem": MULTIPROCESSORS[device.arch].shared,
            "warpSize": device.warp_size,
            "max_num_regs": 65536,
        }
        self.utils = SimpleNamespace(get_device_properties=_always(known))

    def get_active_torch_device(self) -> torch.device:
        return GPU

    def get_current_target(self) -> Any:
        return self._target.triton

    def get_current_device(self) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda
