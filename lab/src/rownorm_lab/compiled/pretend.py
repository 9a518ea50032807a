"""A GPU that is not here: a user's code runs as if there were one, with tensors that have shapes and no values.

Inside ``pretended_gpu`` torch and Triton say that there is a GPU of the target. Tensors are torch's meta tensors, on
whichever device the code wants them; they claim to be on a GPU. Nothing is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton

from rownorm.inside import Target

from ..data.no_gpu import Driver
from ..interpreter.devices import Elsewhere
from .occupancy import MULTIPROCESSORS

GPU = torch.device("cuda:0")


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
    known = {
        "multiprocessor_count": device.n_sms,
        "max_shared_mem": MULTIPROCESSORS[device.arch].shared,
        "warpSize": device.warp_size,
        "max_num_regs": 65536,
    }
    driver = _Driver(str(GPU), target.triton, known)
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, _always(answer)))
        stack.enter_context(mock.patch.object(triton.runtime.driver, "_active", driver))
        stack.enter_context(torch.device("meta"))
        stack.enter_context(_OnGpu("meta"))
        yield


def _always(answer: object) -> Any:
    return lambda *arguments, **named: answer


class _OnGpu(Elsewhere):
    """Tensors have no contents, and say that they are on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU
        return super().__torch_function__(func, types, args, kwargs)


class _Driver(Driver):
    def get_active_torch_device(self) -> torch.device:
        return GPU  # a new device would be replaced by ``_OnGpu``

    def get_device_interface(self) -> Any:
        return torch.cuda
