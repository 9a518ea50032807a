"""What Triton says about the GPU on a machine that has none.

``triton.runtime.driver.active`` raises there. Many files ask it at their top, for a device or for the number of
multiprocessors, and could not even be imported. ``@triton.autotune`` asks it for a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

# Few multiprocessors: a persistent kernel then has few programs, and each of them several turns.
PROPERTIES = {
    "multiprocessor_count": 4,
    "max_shared_mem": 232448,
    "warpSize": 32,
    "max_num_regs": 65536,
}


@contextmanager
def answering_driver(device: str = "cpu") -> Iterator[None]:
    """In the block, Triton's driver answers; ``device`` is its torch device. With a GPU, Triton's own does.

    Of an autotuned kernel the first configuration runs, in the interpreter: there is nothing to time.
    """
    try:
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        yield
        return
    try:
        _ = driver.active
    except RuntimeError:  # there is no GPU
        target = GPUTarget("cuda", 90, PROPERTIES["warpSize"])
        with (
            mock.patch.object(driver, "_active", Driver(device, target, PROPERTIES)),
            mock.patch.object(Autotuner, "run", first_configuration()),
        ):
            yield
        return
    yield


def first_configuration() -> Callable[..., Any]:
    """``@triton.autotune`` without a GPU has nothing to time: the first configuration runs."""
    from triton.runtime.autotuner import Autotuner

    run = Autotuner.run

    def run_first(tuner: Any, *args: Any, **named: Any) -> Any:
        every = tuner.configs
        tuner.configs = every[:1]
        try:
            return run(tuner, *args, **named)
        finally:
            tuner.configs = every

    return run_first


class Driver:
    """What users ask Triton's driver for."""

    def __init__(self, device: str, target: Any, properties: dict[str, int]) -> None:
        self._device, self._target = device, target
        self.utils = SimpleNamespace(get_device_properties=lambda *_: dict(properties))

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device(self._device)

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target
