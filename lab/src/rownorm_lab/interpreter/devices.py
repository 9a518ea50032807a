"""Code that was written for a GPU, on a machine without one: its tensors are made elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


class _Elsewhere(TorchFunctionMode):
    """Whatever asks for a GPU gets ``device``."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0].to(self.device)
        named = {name: self._moved(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._moved, args), **named)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return self.device
        if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
            return self.device
        return value


@contextmanager
def instead_of_a_gpu(device: str) -> Iterator[None]:
    """In the block, tensors for a GPU are made on ``device``: "cpu", or "meta" for tensors without contents."""
    with mock.patch("torch.cuda.synchronize"), torch.device(device), _Elsewhere(device):
        yield
