"""The usual launch in C: an extension that is built when a kernel is first needed and a C compiler is present.

Without the extension Python does the same work; ``reason()`` says why it is not in use.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from triton import knobs

from ... import extension
from ...program import c_definitions
from . import node as node

# Compiled as one file, in this order.
SOURCES = ("prepared_call.h", "common.c", "launch.c", "keys.c", "eager.c", "backward.c", "module.c")
log = logging.getLogger(__name__)
# From cuda.h: CUfunction_attribute.
_NON_PORTABLE_CLUSTER = 14
LARGEST_PORTABLE_CLUSTER = 8
# Bytes of a parameter, by its type in a compiled kernel's signature and in its PTX.
_SIZES = {"i32": 4, "i64": 8, "u32": 4, "u64": 8, "b32": 4, "b64": 8}
# Triton appends two pointers to scratch memory, which these kernels do not use.
_SCRATCH = ((-1, 0), (-1, 0))


class Kernel(NamedTuple):
    """One launch, in the order in which ``read_kernel`` of launch.c reads it."""

    function: int  # the driver's handle
    grid: int  # programs; clusters where cluster_size is above 1
    warps: int
    shared: int  # bytes
    cooperative: bool
    cluster_size: int  # programs
    parameters: tuple[tuple[int, int], ...]  # (index among the tensors, 0) or (-1, value)


def build() -> Any:
    """Compile the extension, unless it was compiled before, and return it as a module; raises where that fails."""
    return extension.build(description())


def description() -> extension.Extension:
    """What is compiled, and how."""
    from triton.backends import nvidia  # imported here because a Triton for other GPUs may lack it

    here = Path(__file__).parent
    torchs = Path(torch.__path__[0], "include")  # for DLPack's header
    return extension.Extension(
        "rownorm_native",
        tuple(here / name for name in SOURCES),
        include=(Path(nvidia.__path__[0], "include"), torchs),
        flags=c_definitions(),
        key=f"{torch.__version__} {__name__}",
    )


@functools.cache
def _load() -> tuple[Any, str]:
    """The extension and "", or None and the reason. ``ops.execute`` calls it first, under a lock."""
    if against := extension.reason_against():
        return None, against
    if os.environ.get("ROWNORM_DIRECT_LAUNCH", "1") == "0":
        return None, "ROWNORM_DIRECT_LAUNCH is 0"
    if knobs.runtime.interpret:
        return None, "kernels run in Triton's interpreter"
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None, "there is no NVIDIA GPU"
    try:
        module = build()
        connect(module, *map(_address, ("cuLaunchKernelEx", "cuGetErrorString", "cuCtxGetCurrent")))
    except Exception as error:  # any failure: Python can do the same
        reason = f"{type(error).__name__}: {error}"
        log.debug("launches in Python: %s", reason)
        return None, reason
    return module, ""


def load_for_cpu() -> Any:
    """The extension for tensors on a CPU, where there is no GPU and nothing to launch; raises where that fails."""
    if against := extension.reason_against():
        raise RuntimeError(against)
    module = build()
    connect(module, 0, 0, 0)
    return module


def load() -> Any:
    """The extension, or None where it is not in use."""
    return _load()[0]


def reason() -> str:
    """Why the extension is not in use; empty where it is."""
    return _load()[1]


def forget() -> None:
    """Find every call again, because plans may have changed."""
    module = load()
    if module is not None:
        module.forget()


def connect(module: Any, launch_kernel: int, error_string: int, current_context: int) -> None:
    """Pass the functions that the extension calls: three of the driver, by address, and torch's."""
    module.use(
        runtime=knobs.runtime,
        current_stream=getattr(torch._C, "_cuda_getCurrentRawStream", None),
        current_device=getattr(torch._C, "_cuda_getDevice", None),
        is_neg=Tensor.is_neg,
        tensor_type=Tensor,
        parameter_type=Parameter,
    )
    module.use_dlpack(Tensor.__dlpack_c_exchange_api__)  # type: ignore[attr-defined]
    module.use_driver(launch_kernel, error_string, current_context)


def parameters(
    signature: dict[str, str],
    ptx: str,
    indices: dict[str, int],
    integers: Mapping[str, Any],
) -> tuple[tuple[int, int], ...]:
    """The ``parameters`` of a Kernel. Raises where the signature and the compiled kernel disagree.

    signature: the type of every argument, "constexpr" for those that are not passed. indices: of the tensors, by
    argument name.
    """
    passed = [(name, kind) for name, kind in signature.items() if kind != "constexpr"]
    sizes = [8 if kind.startswith("*") else _SIZES.get(kind, 0) for _, kind in passed]
    entry = re.search(r"\.entry\s+\w+\s*\(([^)]*)\)", ptx)
    found = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", entry[1] if entry else "")
    if [_SIZES.get(kind, 0) for kind in found] != [*sizes, 8, 8]:
        raise RuntimeError(
            f"the compiled kernel takes {found}; its signature says {[kind for _, kind in passed]}"
        )
    ours = [
        (indices[name], 0) if kind.startswith("*") else (-1, integers[name])
        for name, kind in passed
    ]
    return (*ours, *_SCRATCH)


def prepare(
    n_inputs: int,
    allocators: Sequence[Callable[[], Tensor]],
    returned: Sequence[int],
    kernels: Sequence[Kernel],
    device: int,
    fallback: Callable[..., Any],
) -> Any:
    """A ``PreparedCall`` of the extension: it does in C what ``fallback`` does, and calls it for unusual launches.

    returned: indices among the allocated tensors; -1 for None.
    """
    for kernel in kernels:
        if kernel.cluster_size > LARGEST_PORTABLE_CLUSTER:
            _allow_large_clusters(kernel.function)
    plain = tuple(map(_without_partial, allocators))
    arguments = (plain, tuple(returned), tuple(kernels), device)
    return load().PreparedCall(n_inputs, *arguments, False, fallback)


def reordered(call: Any, order: Sequence[int]) -> Any:
    """A prepared call that returns the results of ``call`` in another order.

    order: indices among the results of ``call``; -1 for None.
    """

    def fallback(inputs: Any, addresses: Any) -> tuple[Tensor | None, ...]:
        results = call(inputs, addresses)
        return tuple(None if index < 0 else results[index] for index in order)

    *first, returned, kernels, device, checks_device, _ = call.arguments
    new_returned = tuple(-1 if index < 0 else returned[index] for index in order)
    return type(call)(*first, new_returned, kernels, device, checks_device, fallback)


def checking_device(call: Any, fallback: Callable[..., Any]) -> Any:
    """A prepared call that does ``call`` while its device is the current one, else ``fallback``."""
    *first, _, _ = call.arguments
    return type(call)(*first, True, fallback)


def is_native(call: Any) -> bool:
    """Whether this is a ``PreparedCall`` of the extension."""
    module = load()
    return module is not None and type(call) is module.PreparedCall


def _without_partial(
    allocate: Callable[[], Tensor],
) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """A function and its arguments. Calling a partial would build the tuple of arguments each time."""
    if isinstance(allocate, functools.partial) and not allocate.keywords:
        return allocate.func, allocate.args
    return allocate, ()


def _address(name: str) -> int:
    """The address of a function of the CUDA driver."""
    function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    address = ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        raise RuntimeError(f"{name} has no address")
    return address


def _allow_large_clusters(function: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    status = cuda.cuFuncSetAttribute(ctypes.c_void_p(function), _NON_PORTABLE_CLUSTER, 1)
    if status:
        raise RuntimeError(f"the CUDA driver refused clusters of 16 programs: {status}")
