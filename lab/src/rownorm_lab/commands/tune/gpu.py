"""What a search needs of the GPU that it runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rownorm.inside import Device, device_of

from ...compiled.compile import target_of
from ...measure.machine import machine_of
from .compiling import Ahead
from .study import TuningCase
from .timer import Timer


class Gpu(NamedTuple):
    """The GPU, the processes that compile for it, and its timer."""

    device: Device
    ahead: Ahead
    timer_of: Callable[[TuningCase], Timer]


def gpu_here(workers: int) -> Gpu:
    """The GPU of this process, with so many processes that compile."""
    machine = machine_of("cuda", ())
    return Gpu(device_of(0), Ahead(workers, known_target()), lambda one: Timer(one, machine))


def known_target() -> str | None:
    """The name of this GPU's target; None for a new architecture, whose limits are not known."""
    try:
        target_of("this")
    except ValueError:
        return None
    return "this"
