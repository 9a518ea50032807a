"""Whether FlashInfer-Bench can be used here, and how to install it."""

from __future__ import annotations

import importlib.util

from ..device.environment import version_of

VERSION = "0.1.2"
# Its metadata also asks for flashinfer-python (421 MB) and apache-tvm-ffi, which Python and Triton Solutions do not
# need. So it is installed without its dependencies, and the extra ``fib`` has those that are needed.
NEEDS = ("flashinfer_bench", "pydantic", "safetensors", "docstring_parser", "filelock")
INSTALL = f"pip install 'rownorm-lab[fib]' && pip install --no-deps flashinfer-bench=={VERSION}"


def missing() -> str:
    """Why FlashInfer-Bench cannot be used, and what to do; empty where it can."""
    absent = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        are = "is" if len(absent) == 1 else "are"
        return f"{', '.join(absent)} {are} not installed; {INSTALL}"
    return ""


def state() -> str:
    """One line for ``rownorm info``."""
    why, found = missing(), version_of("flashinfer-bench")
    if why:
        return f"missing: {why}"
    if found != VERSION:
        return f"installed {found}, not tested; tested is {VERSION}: {INSTALL}"
    return f"ready {found}"
