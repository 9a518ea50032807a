"""How kernels use the L1 cache, which shares its memory with shared memory.

Backward copies rows into shared memory before they are needed (cp.async). Triton makes copies of 16 bytes bypass L1
(``.cg``); copies of 8 bytes go through it (``.ca``). Measured on an H200: with all copies through L1, programs of a
cluster are 10% faster and other programs as fast as before. This needs a large enough L1, but Triton asks for all of
the shared memory where a program uses more than 48 KiB of it. ``reserve_for_l1`` asks for less.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import torch
from triton import knobs

from .cluster_capacity import RESERVED

# From cuda.h: CUfunction_attribute.
_STATIC_SHARED, _PREFERRED_SHARED = 1, 9
# Triton has one hook for all threads, so one thread sets it at a time.
_compiling = threading.RLock()
_compiling_thread = 0  # the thread whose compilations the hook edits


@contextlib.contextmanager
def copies_through_l1(wanted: bool) -> Iterator[None]:
    """A context in which kernels that this thread compiles copy 16 bytes through L1, if ``wanted``.

    It does nothing where a hook is installed already.
    """
    global _compiling_thread
    if not wanted:
        yield
        return
    with _compiling:
        _compiling_thread = threading.get_ident()
        before = knobs.runtime.add_stages_inspection_hook
        if before is None:
            knobs.runtime.add_stages_inspection_hook = _edit_ptx
        try:
            yield
        finally:
            knobs.runtime.add_stages_inspection_hook = before


def _edit_ptx(_backend: Any = None, stages: Any = None, *_: Any) -> tuple[str, str]:
    """Triton's hook: edits the stages of a compilation, and returns what identifies the edit in Triton's cache keys.

    Triton calls it without stages for the cache key alone.
    """
    if threading.get_ident() != _compiling_thread:
        return "untouched", "1"
    if stages is not None and "ptx" in stages:
        make_ptx = stages["ptx"]
        stages["ptx"] = lambda source, metadata: make_ptx(source, metadata).replace(
            "cp.async.cg.shared", "cp.async.ca.shared"
        )
    return "copies_through_l1", "1"


def reserve_for_l1(function: int, shared: int, programs: int, device: int) -> None:
    """Ask for shared memory for ``programs`` programs on each SM and leave the rest to L1. The driver may refuse.

    shared: bytes of dynamic shared memory of a launch.
    """
    total = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    cuda, static = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    kernel = ctypes.c_void_p(function)
    if cuda.cuFuncGetAttribute(ctypes.byref(static), _STATIC_SHARED, kernel) == 0:
        needed = programs * (shared + static.value + RESERVED)
        percent = min(100, -(-100 * needed // total))
        cuda.cuFuncSetAttribute(kernel, _PREFERRED_SHARED, percent)
