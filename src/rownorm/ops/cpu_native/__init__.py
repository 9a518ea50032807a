"""The row program on a CPU in C: an extension that is built when a tensor on a CPU is first normalized.

``forward`` and ``backward`` return None for a call that the extension does not cover (module.c says which), and for
every call where there is no extension. ``ops.cpu`` then computes it; ``reason()`` says why there is no extension.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ... import extension
from ...program import Program, c_definitions
from ..checks import has_memory

SOURCES = (
    "rows.c",
    "forward.c",
    "backward.c",
    "threads.c",
    "tensors.c",
    "module.c",
)  # in this order
# Without errno, sqrt is one instruction. ``omp simd`` allows a sum to be vectorized.
FLAGS = ("-fopenmp-simd", "-fno-math-errno")
# For all instructions of this CPU. Compilers avoid vectors of 512 bits on many CPUs that have them; conversions of bf16
# gain most from them.
NATIVE = {
    "x86_64": ("-march=native", "-mprefer-vector-width=512"),
    "aarch64": ("-mcpu=native",),
}
log = logging.getLogger(__name__)
_lock = threading.Lock()


def _renew_lock() -> None:
    """In a fork: a thread that held the lock is not there."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def description() -> extension.Extension:
    """What is compiled, and how."""
    here = Path(__file__).parent
    native, cpu = NATIVE.get(platform.machine(), ()), _cpu()
    return extension.Extension(
        "rownorm_cpu",
        tuple(here / name for name in SOURCES),
        include=(Path(torch.__file__).parent / "include",),  # for DLPack's header
        flags=(*c_definitions(), *FLAGS, *(native if cpu else ())),
        key=f"{torch.__version__} {cpu} {__name__}",
    )


def build() -> Any:
    """Compile the extension, unless it was compiled before, and return it as a module; raises where that fails."""
    module = extension.build(description())
    module.use(
        Tensor,
        Parameter,
        Tensor.__dlpack_c_exchange_api__,  # type: ignore[attr-defined]
        torch.empty_like,
        torch.empty_strided,
        {"dtype": torch.float32, "device": torch.device("cpu")},
        has_memory,
        torch.get_num_threads,
        tuple(Program._field_defaults.get(name) for name in Program._fields),
        *_openmp(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"),
    )
    return module


@functools.cache
def _load() -> tuple[Any, str]:
    """The extension and "", or None and the reason."""
    if reason := extension.reason_against():
        return None, reason
    try:
        return build(), ""
    except Exception as error:  # any failure: PyTorch can compute the same
        reason = f"{type(error).__name__}: {error}"
        log.debug("tensors on a CPU are computed by PyTorch: %s", reason)
        return None, reason


def load() -> Any:
    """The extension, or None where it is not in use."""
    with _lock:
        return _load()[0]


def reason() -> str:
    """Why the extension is not in use; empty where it is."""
    with _lock:
        return _load()[1]


def _not_covered(*_: object) -> None:
    return None


def _connect() -> None:
    """Replace ``forward`` and ``backward`` by the functions of the extension."""
    global forward, backward
    module = load()
    forward = _not_covered if module is None else module.forward
    backward = _not_covered if module is None else module.backward


def _first_forward(*arguments: Any) -> Any:
    _connect()
    return forward(*arguments)


def _first_backward(*arguments: Any) -> Any:
    _connect()
    return backward(*arguments)


# (inputs, options, want_statistics) -> (y, h, mu, rstd), or None
forward: Any = _first_forward
# (inputs of backward, options, has_residual, wanted) -> gradients, or None
backward: Any = _first_backward


def _cpu() -> str:
    """What identifies the instructions of this CPU; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    return " ".join(sorted({line for line in lines if line.startswith(names)}))


def _openmp(library: Path) -> tuple[int, int, int]:
    """Addresses of the OpenMP functions that PyTorch uses; 0 where it has none."""
    try:
        loaded = ctypes.CDLL(str(library))  # finds them in the libraries that it was linked with
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        addresses = [
            ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in names
        ]
    except (OSError, AttributeError):
        return 0, 0, 0
    return addresses[0], addresses[1], addresses[2]
