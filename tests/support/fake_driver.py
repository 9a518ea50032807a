"""A CUDA driver that records launches, and helpers of the tests of the C extension."""

import ctypes
import gc
import os
import shutil
import sys
import traceback

import pytest
import torch

from rownorm.launch import native
from rownorm.ops import execute

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)
ERROR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
# From cuda.h: CUlaunchAttributeID.
COOPERATIVE, CLUSTER_DIMENSION, CLUSTER_POLICY = 2, 4, 5
SPREAD = 1
STREAM = 1 << 40

needs_compiler = pytest.mark.skipif(
    (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")) is None,
    reason="there is no C compiler",
)
needs_interpreter = pytest.mark.skipif(
    not execute.INTERPRETING, reason="kernels run on the CPU only in Triton's interpreter"
)


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("n_attributes", ctypes.c_uint),
    )


class Driver:
    """Replaces the CUDA driver and records launches. ``on_launch(function, parameters)`` runs in place of a kernel."""

    def __init__(self, module):
        self.launched, self.result, self.context, self.on_launch = [], 0, 8, None
        self.callbacks = (LAUNCH(self.launch), ERROR(self.error), CONTEXT(self.current))
        addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in self.callbacks]
        native.connect(module, *addresses)

    def launch(self, config, function, parameters, _extra):
        c = ctypes.cast(config, ctypes.POINTER(Config))[0]
        attributes = [
            (c.attributes[i].id, *c.attributes[i].value[:3]) for i in range(c.n_attributes)
        ]
        self.launched.append(
            (function, (*c.grid,), (*c.block,), c.shared, c.stream, attributes, parameters)
        )
        try:
            if self.on_launch is not None:
                self.on_launch(function, parameters)
        except Exception:  # an exception cannot pass through C
            traceback.print_exc()
            return -1
        return self.result

    @staticmethod
    def error(_code, text):
        text[0] = b"a test error"
        return 0

    def current(self, context):
        context[0] = self.context
        return 0


def read_parameters(parameters, kinds):
    """The values of a kernel's parameters, of these C types."""
    return [ctypes.cast(parameters[i], ctypes.POINTER(kind))[0] for i, kind in enumerate(kinds)]


POINTER, INTEGER = ctypes.c_uint64, ctypes.c_int32
KERNEL = native.Kernel(
    1234, 7, 4, 1024, False, 1, ((1, 0), (0, 0), (-1, -5), (0, 0), (-1, 1 << 40))
)


def simple_call(fallback=None, device=0, kernels=(KERNEL,), returned=(-1, 0)):
    """A prepared call of one input and one allocated tensor."""
    return native.prepare(1, [lambda: torch.zeros(5)], returned, kernels, device, fallback)


def leaked_blocks(repeat, n=1500):
    """Blocks of memory that each call leaves allocated: 1 or more if it leaks; pools and caches add a fraction."""
    for _ in range(200):
        repeat()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(n):
        repeat()
    gc.collect()
    return (sys.getallocatedblocks() - before) / n
