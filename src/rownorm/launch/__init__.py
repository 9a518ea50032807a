"""Problem -> Plan -> launch: how a row program becomes kernels on a device."""

from . import backward, forward, native
from .device import Device, device_of
from .planning import Plan, force, on_change, plan
from .problem import Problem
from .rows import contiguous, with_common_layouts

__all__ = [
    "Device",
    "Plan",
    "Problem",
    "backward",
    "contiguous",
    "device_of",
    "force",
    "forward",
    "native",
    "on_change",
    "plan",
    "with_common_layouts",
]
