"""How many clusters of programs a GPU runs at once: asked of the driver, as the answer depends on how its
multiprocessors are grouped, and on how many of each group work."""

from __future__ import annotations

import ctypes

import torch

SIZES = (2, 4, 8, 16)  # programs in a cluster
SHARES = (1, 2, 4, 8)  # programs on a multiprocessor
# From cuda.h: CUfunction_attribute and CUlaunchAttributeID.
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER, _CLUSTER_DIMENSION = 8, 14, 4
# Bytes of shared memory that a multiprocessor has, and that a program takes beside its own.
_SHARED, RESERVED = 228 << 10, 1 << 10

_PROBE = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry probe() { ret; }
"""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_uint),
    )


def resident_clusters(device: int) -> tuple[tuple[int, ...], ...]:
    """For each of SHARES, how many clusters of each of SIZES run at once with so many programs to a multiprocessor.

    With several, clusters may share multiprocessors that are too few for one more cluster of their own. Empty where the
    driver does not say: then nothing is planned for clusters.
    """
    try:
        with torch.cuda.device(device):
            torch.empty(1, device="cuda")  # makes a context, without which the driver has no answer
            return _ask_driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError, RuntimeError):  # no driver, an older one, one that refuses
        return ()


def _ask_driver(cuda: ctypes.CDLL) -> tuple[tuple[int, ...], ...]:
    module, probe = ctypes.c_void_p(), ctypes.c_void_p()
    _check(cuda.cuModuleLoadData(ctypes.byref(module), _PROBE))
    try:
        _check(cuda.cuModuleGetFunction(ctypes.byref(probe), module, b"probe"))
        _check(cuda.cuFuncSetAttribute(probe, _MAX_DYNAMIC_SHARED, _SHARED - RESERVED))
        _check(cuda.cuFuncSetAttribute(probe, _NON_PORTABLE_CLUSTER, 1))
        return tuple(
            tuple(_resident(cuda, probe, size, _SHARED // share - RESERVED) for size in SIZES)
            for share in SHARES
        )
    finally:
        cuda.cuModuleUnload(module)


def _resident(cuda: ctypes.CDLL, probe: ctypes.c_void_p, size: int, shared: int) -> int:
    """How many clusters of ``size`` programs with so many bytes of shared memory run at once."""
    dimension = _Attribute(_CLUSTER_DIMENSION, 0, (size, 1, 1))
    config = _Config((size, 1, 1), (128, 1, 1), shared, None, ctypes.pointer(dimension), 1)
    count = ctypes.c_int()
    _check(cuda.cuOccupancyMaxActiveClusters(ctypes.byref(count), probe, ctypes.byref(config)))
    return count.value


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver answered {status}")
