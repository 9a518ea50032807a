"""The version of Triton, on which plans depend, and what to say where Triton is missing."""

from __future__ import annotations

import sys

# The versions whose launcher has been tested.
FIRST_KNOWN_VERSION = (3, 6)
LAST_KNOWN_VERSION = (3, 9)

try:
    from triton import __version__ as _version

    INSTALLED, INSTALLED_VERSION = True, str(_version)
    VERSION = tuple(int(part) for part in INSTALLED_VERSION.split(".")[:2])
except ModuleNotFoundError:  # plans can still be made, for a GPU elsewhere
    INSTALLED, INSTALLED_VERSION = False, ""
    VERSION = LAST_KNOWN_VERSION


def missing() -> str:
    """What is missing without Triton, and how to get it."""
    if sys.platform != "linux":
        return (
            "Triton is not installed, and rownorm's kernels need it. It is made for Linux with a GPU. On this system "
            "rownorm computes tensors on a CPU, and rownorm.explain(..., device='sm_90') plans for a GPU elsewhere."
        )
    (major, first), (_, last) = FIRST_KNOWN_VERSION, LAST_KNOWN_VERSION
    return (
        "Triton is not installed, and rownorm's kernels need it: "
        f"pip install 'triton>={major}.{first},<{major}.{last + 1}'."
    )
