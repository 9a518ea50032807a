"""The library's inside, as the lab sees it: the one door for programs that plan, compile, tune or examine kernels.

Nothing here is needed to use the norms, and any of it may change between versions. The lab imports the public names of
``rownorm`` and what this file lists, and no more. A name is imported when it is used, because some need Triton.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import extension, reference
    from .launch import Device, Plan, Problem, device_of, force, native
    from .launch.launcher import INTERPRETING, Call
    from .launch.planning import files as tables
    from .launch.planning.resident import MOST_CHUNKS
    from .launch.planning.settings import in_words
    from .launch.planning.table import SETTINGS, Entry, Table, parse
    from .launch.problem import Direction
    from .launch.resources import (
        TARGETS,
        Binary,
        Resources,
        Target,
        compile_backward,
        compile_forward,
        resources,
    )
    from .launch.triton_version import missing
    from .ops import cpu_native, execute
    from .patching.candidates import LeftAlone, candidate_of, is_norm_by_name
    from .patching.forms import SHORT_NAMES
    from .program import ACTIVATIONS, INPUTS, OPTIONS, Activation, Inputs, Program

# Names that are modules, and the modules that have the others.
_MODULES = {
    "cpu_native": "ops.cpu_native",
    "execute": "ops.execute",
    "extension": "extension",
    "native": "launch.native",
    "reference": "reference",
    "tables": "launch.planning.files",
}
_HOMES = {
    "launch": ("Device", "Plan", "Problem", "device_of", "force"),
    "launch.launcher": ("INTERPRETING", "Call"),
    "launch.planning.table": ("SETTINGS", "Entry", "Table", "parse"),
    "launch.planning.resident": ("MOST_CHUNKS",),
    "launch.planning.settings": ("in_words",),
    "launch.problem": ("Direction",),
    "launch.resources": (
        *("TARGETS", "Binary", "Resources", "Target"),
        *("compile_backward", "compile_forward", "resources"),
    ),
    "launch.triton_version": ("missing",),
    "patching.candidates": ("LeftAlone", "candidate_of", "is_norm_by_name"),
    "patching.forms": ("SHORT_NAMES",),
    "program": ("ACTIVATIONS", "INPUTS", "OPTIONS", "Activation", "Inputs", "Program"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = [*_MODULES, *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in _MODULES:
            return import_module(f"{__package__}.{_MODULES[name]}")
        return getattr(import_module(f"{__package__}.{_HOME_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
        from .launch.triton_version import missing as what_to_do

        raise ModuleNotFoundError(what_to_do(), name="triton") from None
