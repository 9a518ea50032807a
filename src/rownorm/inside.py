"""The library's inside, as the lab sees it: the one door for programs that plan, compile, tune or examine kernels.

Nothing here is needed to use the norms, and any of it may change between versions. The lab imports the public names of
``rownorm`` and what this file lists, and no more.
"""

from typing import NoReturn

from . import extension, reference
from .launch import Device, Plan, Problem, device_of, force
from .launch.planning import files as tables
from .launch.planning.table import SETTINGS, Row, Table, parse
from .launch.planning.tile import MOST_CHUNKS
from .launch.problem import Direction
from .launch.triton_version import INSTALLED, missing
from .ops import cpu_native, execute
from .patching.candidates import LeftAlone, candidate_of, is_norm_by_name
from .patching.forms import SHORT_NAMES
from .program import ACTIVATIONS, Activation, Program

__all__ = [
    "ACTIVATIONS",
    "MOST_CHUNKS",
    "SETTINGS",
    "SHORT_NAMES",
    "Activation",
    "Device",
    "Direction",
    "LeftAlone",
    "Plan",
    "Problem",
    "Program",
    "Row",
    "Table",
    "candidate_of",
    "cpu_native",
    "device_of",
    "execute",
    "extension",
    "force",
    "is_norm_by_name",
    "missing",
    "parse",
    "reference",
    "tables",
]

if INSTALLED:  # the rest compiles or starts kernels
    from .launch import native
    from .launch.launcher import INTERPRETING, POINTER_TYPE, Call
    from .launch.resources import (
        TARGETS,
        Binary,
        Resources,
        Target,
        compile_backward,
        compile_forward,
        resources,
    )

    __all__ += [
        "INTERPRETING",
        "POINTER_TYPE",
        "TARGETS",
        "Binary",
        "Call",
        "Resources",
        "Target",
        "compile_backward",
        "compile_forward",
        "native",
        "resources",
    ]
else:

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ModuleNotFoundError(missing(), name="triton")
