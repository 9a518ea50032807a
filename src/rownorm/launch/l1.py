"""What a kernel leaves to the L1 cache, which shares its memory with what programs hold themselves.

Backward copies rows into shared memory turns ahead. Copies of 8 bytes go through L1, copies of 16 past it, as Triton
makes them. Measured on an H200: through it, programs of a cluster are faster by a tenth, the others are as fast. But
then L1 must not be small, and Triton asks for all there is of shared memory where a program has more than 48 KiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import torch
from triton import knobs

from .clusters import RESERVED

# From cuda.h: CUfunction_attribute.
_STATIC_SHARED, _PREFERRED_SHARED = 1, 9
# Triton has one hook for all threads: nobody takes it away from another.
_compiling = threading.RLock()
_compiler = 0  # the thread that it is for


@contextlib.contextmanager
def copies_through_l1(wanted: bool) -> Iterator[None]:
    """Within it, if ``wanted``, what this thread has Triton compile makes its copies of 16 bytes through L1.

    A hook that is there already stays alone.
    """
    global _compiler
    if not wanted:
        yield
        return
    with _compiling:
        _compiler = threading.get_ident()
        before = knobs.runtime.add_stages_inspection_hook
        if before is None:
            knobs.runtime.add_stages_inspection_hook = _edit_ptx
        try:
            yield
        finally:
            knobs.runtime.add_stages_inspection_hook = before


def _edit_ptx(_backend: Any = None, stages: Any = None, *_: Any) -> tuple[str, str]:
    """Triton's hook: changes the steps of a compilation; or, asked without any, says what it is in cache keys."""
    if threading.get_ident() != _compiler:
        return "untouched", "1"
    if stages is not None and "ptx" in stages:
        make_ptx = stages["ptx"]
        stages["ptx"] = lambda source, metadata: make_ptx(source, metadata).replace(
            "cp.async.cg.shared", "cp.async.ca.shared"
        )
    return "copies_through_l1", "1"


def leave_to_l1(function: int, shared: int, programs: int, device: int) -> None:
    """Shared memory for that many programs on each multiprocessor, all else for L1. A wish: the driver may refuse it.

    shared: bytes that a launch asks for, beside those the kernel itself has.
    """
    total = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    cuda, own = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    kernel = ctypes.c_void_p(function)
    if cuda.cuFuncGetAttribute(ctypes.byref(own), _STATIC_SHARED, kernel) == 0:
        needed = programs * (shared + own.value + RESERVED)
        percent = min(100, -(-100 * needed // total))
        cuda.cuFuncSetAttribute(kernel, _PREFERRED_SHARED, percent)
