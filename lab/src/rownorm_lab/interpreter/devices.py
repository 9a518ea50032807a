"""Code that was written for a GPU, on a machine without one: its tensors are made elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from ..data.no_gpu import answering_driver


class Elsewhere(TorchFunctionMode):
    """Whatever asks for a GPU gets ``device``."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.cuda, torch.Tensor.cpu) and self._is_replaced(func.__name__):
            return args[0].to(self.device)
        named = {name: self._moved(value) for name, value in (kwargs or {}).items()}
        if self.device.type == "meta":
            named.pop("generator", None)  # it is of another device, and nothing is drawn
        return func(*map(self._moved, args), **named)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, torch.device) and self._is_replaced(value.type):
            return self.device
        if isinstance(value, str) and self._is_replaced(value.partition(":")[0]):
            return self.device
        return value

    def _is_replaced(self, kind: str) -> bool:
        """Tensors without contents also replace those that a file without a GPU makes on the CPU."""
        return kind == "cuda" or (kind == "cpu" and self.device.type == "meta")


@contextmanager
def instead_of_a_gpu(device: str) -> Iterator[None]:
    """In the block, tensors for a GPU are made on ``device``: "cpu", or "meta" for tensors without contents."""
    with (
        mock.patch("torch.cuda.synchronize"),
        answering_driver(device),
        torch.device(device),
        Elsewhere(device),
    ):
        yield
