"""What every launch repeats, in C: built when a kernel is first wanted, where there is a compiler; else Python serves.

Triton needs a C compiler and Python's headers for its own launcher, and keeps what it builds: so it builds this too.
``reason()`` says why it is not in use.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

SOURCES = ("native.c", "native_eager.c")  # compiled as one
log = logging.getLogger(__name__)
# From cuda.h: CUfunction_attribute.
_NON_PORTABLE_CLUSTER = 14
LARGEST_PORTABLE_CLUSTER = 8
# Bytes of a parameter, by its type in a compiled kernel's signature and in its PTX.
_SIZES = {"i32": 4, "i64": 8, "u32": 4, "u64": 8, "b32": 4, "b64": 8}
# Two pointers that Triton adds, to memory that these kernels do not use.
_SCRATCH = ((-1, 0), (-1, 0))


class Kernel(NamedTuple):
    """One launch: as ``Run`` in native.c reads it."""

    function: int  # the driver's handle
    grid: int  # programs, or clusters of them
    warps: int
    shared: int  # bytes
    cooperative: bool
    cluster_size: int  # programs
    parameters: tuple[tuple[int, int], ...]  # (place among the tensors, 0) or (-1, value)


def build() -> Any:
    """The extension as a module; raises where it cannot be built."""
    # Here, because a Triton for other GPUs may not have them.
    from triton.backends import nvidia
    from triton.runtime.build import compile_module_from_src

    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton does
    header = Path(sysconfig.get_paths(scheme)["include"], "Python.h")
    if not header.exists():  # the compiler would say so at length
        raise RuntimeError(f"{header} is missing")
    here = Path(__file__).parent
    source = "".join(f'#line 1 "{name}"\n{(here / name).read_text()}' for name in SOURCES)
    include = [str(Path(nvidia.__path__[0], "include"))]
    return compile_module_from_src(source, "rownorm_native", include_dirs=include)


@functools.cache
def _load() -> tuple[Any, str]:
    """The extension and "", or None and the reason why there is none. ``execute`` asks first, and alone."""
    for setting in ("ROWNORM_NATIVE", "ROWNORM_DIRECT_LAUNCH"):
        if os.environ.get(setting, "1") == "0":
            return None, f"{setting} is 0"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None, "Python has no lock that it could rely on"
    if knobs.runtime.interpret:
        return None, "Triton interprets"
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None, "there is no NVIDIA GPU"
    try:
        module = build()
        connect(module, *map(_address, ("cuLaunchKernelEx", "cuGetErrorString", "cuCtxGetCurrent")))
    except Exception as error:  # whatever it is, Python can do the same
        reason = f"{type(error).__name__}: {error}"
        log.debug("launches in Python: %s", reason)
        return None, reason
    return module, ""


def load() -> Any:
    """The extension, or None: then Python does the same."""
    return _load()[0]


def reason() -> str:
    """Why there is no extension; empty where there is one."""
    return _load()[1]


def forget() -> None:
    """Plans may have changed: backward is found again."""
    module = load()
    if module is not None:
        module.forget()


def connect(module: Any, launch_kernel: int, error_string: int, current_context: int) -> None:
    """Give the extension what it calls: three functions of the driver by their addresses, and torch's."""
    module.use(
        runtime=knobs.runtime,
        current_stream=getattr(torch._C, "_cuda_getCurrentRawStream", None),
        current_device=getattr(torch._C, "_cuda_getDevice", None),
        data_ptr=Tensor.data_ptr,
        is_contiguous=Tensor.is_contiguous,
        stride=Tensor.stride,
        get_device=Tensor.get_device,
        is_neg=Tensor.is_neg,
        tensor_type=Tensor,
    )
    module.use_driver(launch_kernel, error_string, current_context)


def parameters(
    signature: dict[str, str], ptx: str, places: dict[str, int], integers: dict[str, int]
) -> tuple[tuple[int, int], ...]:
    """What a kernel takes, in its order; raises where that is not what the compiled kernel says of itself.

    signature: the type of every argument, "constexpr" where none is passed. places: of the tensors, by argument.
    """
    taken = [(name, kind) for name, kind in signature.items() if kind != "constexpr"]
    sizes = [8 if kind.startswith("*") else _SIZES.get(kind, 0) for _, kind in taken]
    entry = re.search(r"\.entry\s+\w+\s*\(([^)]*)\)", ptx)
    found = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", entry[1] if entry else "")
    if [_SIZES.get(kind, 0) for kind in found] != [*sizes, 8, 8]:
        raise RuntimeError(f"a kernel takes {found}, and not {[kind for _, kind in taken]}")
    ours = [
        (places[name], 0) if kind.startswith("*") else (-1, integers[name]) for name, kind in taken
    ]
    return (*ours, *_SCRATCH)


def run(
    n_given: int,
    makers: Sequence[Callable[[], Tensor]],
    fixed: Sequence[Tensor],
    returned: Sequence[int],
    kernels: Sequence[Kernel],
    device: int,
    otherwise: Callable[..., Any],
) -> Any:
    """``otherwise`` in C, which it goes to where a launch is unusual.

    returned: places among what the makers make; -1 for None.
    """
    for kernel in kernels:
        if kernel.cluster_size > LARGEST_PORTABLE_CLUSTER:
            _allow_large_clusters(kernel.function)
    addresses = tuple(tensor.data_ptr() for tensor in fixed)
    plain = tuple(map(_without_partial, makers))
    arguments = (plain, tuple(fixed), addresses, tuple(returned), tuple(kernels), device)
    return load().Run(n_given, *arguments, False, otherwise)


def returning(run: Any, order: Sequence[int]) -> Any:
    """``run``, but that it returns what it returned in another order: places in the old one, -1 for None."""

    def otherwise(given: Any, addresses: Any) -> tuple[Tensor | None, ...]:
        made = run(given, addresses)
        return tuple(None if place < 0 else made[place] for place in order)

    *first, returned, kernels, device, is_guarded, _ = run.arguments
    again = tuple(-1 if place < 0 else returned[place] for place in order)
    return type(run)(*first, again, kernels, device, is_guarded, otherwise)


def guarded(run: Any, otherwise: Callable[..., Any]) -> Any:
    """``run`` while its device is the current one; else ``otherwise``."""
    *first, _, _ = run.arguments
    return type(run)(*first, True, otherwise)


def is_run(run: Any) -> bool:
    """Whether this is a run of the extension."""
    module = load()
    return module is not None and type(run) is module.Run


def _without_partial(make: Callable[[], Tensor]) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """A function and its arguments: a tuple that is there already is one less to be made."""
    if isinstance(make, functools.partial) and not make.keywords:
        return make.func, make.args
    return make, ()


def _address(name: str) -> int:
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
