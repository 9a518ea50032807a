"""How many clusters of programs a GPU runs at once.

The driver has to be asked: the number depends on how the SMs are grouped, and on how many of each group are enabled.
"""

from __future__ import annotations

import ctypes

import torch

SIZES = (2, 4, 8, 16)  # programs in a cluster
SHARES = (1, 2, 4, 8)  # programs on one SM
# From cuda.h: CUfunction_attribute and CUlaunchAttributeID.
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER, _CLUSTER_DIMENSION = 8, 14, 4
# Bytes of shared memory of an SM, and those that the driver reserves for each program.
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
    """Clusters that run at once: one tuple for each of SHARES, with a number for each of SIZES.

    With several programs on an SM, clusters can use SMs that would be too few for a cluster with one program on each.
    Empty where the driver does not answer; then no plan uses clusters.
    """
    try:
        with torch.cuda.device(device):
            torch.empty(1, device="cuda")  # creates the CUDA context that the driver needs
            return _ask_driver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError, RuntimeError):  # no driver, an older one, or an error
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
    """How many clusters of ``size`` programs run at once, each program with ``shared`` bytes of shared memory."""
    dimension = _Attribute(_CLUSTER_DIMENSION, 0, (size, 1, 1))
    config = _Config((size, 1, 1), (128, 1, 1), shared, None, ctypes.pointer(dimension), 1)
    count = ctypes.c_int()
    _check(cuda.cuOccupancyMaxActiveClusters(ctypes.byref(count), probe, ctypes.byref(config)))
    return count.value


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver returned error {status}")
