"""Problem -> Plan -> launch: how a row program becomes kernels on a device.

Problems and plans need no Triton. Where it is missing, the rest of this package raises with what to do.
"""

from typing import NoReturn

from .device import Device, device_of
from .planning import Plan, force, on_change, plan
from .problem import Problem
from .triton_version import INSTALLED, missing

if INSTALLED:
    from . import backward, forward, native, rows
else:

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ModuleNotFoundError(missing(), name="triton")


__all__ = [
    "Device",
    "Plan",
    "Problem",
    "backward",
    "device_of",
    "force",
    "forward",
    "native",
    "on_change",
    "plan",
    "rows",
]
