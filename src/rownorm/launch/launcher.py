"""The one place where kernels are bound and started: it touches the private interfaces of Triton's launcher.

``bind`` compiles a kernel once and gives back what starts it. Triton's public ``kernel[grid](...)`` looks
up its own cache of compiled kernels at every call, which costs more than the launch itself; where the version of
Triton is one whose launcher is known, the compiled kernel is started directly. Anything else, the interpreter, and
whatever runs while a profiler has asked Triton to be told of launches, takes the public way; except clusters, which
have none, and tell the profiler themselves. On an NVIDIA GPU the usual launch is done in C (native.py); what is here
stays the whole description, and does what C leaves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import native
from .l1 import copies_through_l1, leave_to_l1

INTERPRETING = bool(knobs.runtime.interpret)
DIRECT = os.environ.get("ROWNORM_DIRECT_LAUNCH", "1") != "0"
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
KNOWN_VERSIONS = ((3, 6), (3, 9))  # the first and the last whose launcher is known


def is_known() -> bool:
    """Whether this Triton's launcher is known."""
    return KNOWN_VERSIONS[0] <= VERSION <= KNOWN_VERSIONS[1]


# Triton's public way has no words for a cluster of programs that it did not make itself.
CAN_START_CLUSTERS = DIRECT and not INTERPRETING and is_known()

POINTER_TYPE = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
}


class Call(NamedTuple):
    """One kernel, everything about its launch but the tensors. Pointers are named ``<role>_ptr``."""

    kernel: Any
    grid: int
    num_warps: int
    integers: dict[str, int]
    constants: dict[str, Any]
    cluster_size: int = 1  # programs to a cluster; the grid then counts clusters
    maxnreg: int = 0  # at most, for each thread; 0: as the compiler likes
    cooperative: bool = False  # all programs at once, or none
    programs_per_sm: int = 0  # that have to fit an SM at once; 0: as the driver likes

    @property
    def options(self) -> dict[str, int]:
        options = {"num_warps": self.num_warps}
        if self.maxnreg:
            options["maxnreg"] = self.maxnreg
        if self.cooperative:
            options["launch_cooperative_grid"] = True
        return options

    @property
    def roles(self) -> tuple[str, ...]:
        """The tensors this kernel takes, in its order."""
        names = self.kernel.arg_names
        return tuple(name.removesuffix("_ptr") for name in names if name.endswith("_ptr"))

    def ordered(self, values: dict[str, Any]) -> tuple[Any, ...]:
        """Those of ``values`` that this kernel takes, in its order."""
        return tuple(values[name] for name in self.kernel.arg_names if name in values)


# Triton keeps what it compiles for all threads, and shows it to them before it is loaded: one at a time.
_binding = threading.RLock()

# Starts a bound kernel on tensors, and their addresses, in the order of the roles it was bound with.
Start = Callable[[Sequence[Tensor | None], Sequence[int | None]], None]


class Bound(NamedTuple):
    """A kernel that is ready to run."""

    start: Start
    compiled: Any = None  # by Triton, if that was done beforehand


# (given tensors, their addresses, which it may add to) -> tensors that are returned.
Run = Callable[[Sequence[Tensor | None], list[int | None]], tuple[Tensor | None, ...]]


def bind_all(
    calls: Sequence[Call],
    given: Mapping[str, Tensor | None],
    makers: Mapping[str, Callable[[], Tensor]],
    fixed: Mapping[str, Tensor],
    returned: Sequence[str],
    device: int,
) -> Run:
    """Compile ``calls``; the result makes what ``makers`` make, starts the kernels, and returns what is asked for.

    It takes tensors like those in ``given``, in that order: same dtypes, same alignment. ``fixed`` are the same tensors
    every time. What is asked for and not made is None.
    """
    # The last tensor is None, and stands for every role that is not here.
    roles = [*given, *makers, *fixed, ""]
    make, last = tuple(makers.values()), (*fixed.values(), None)
    last_addresses = [None if t is None else t.data_ptr() for t in last]
    take_returned = itemgetter(*(roles.index(name) if name in makers else -1 for name in returned))
    example = (*given.values(), *[new() for new in make], *last)
    bound = [bind(call, roles, example, device) for call in calls]
    starts = [one.start for one in bound]

    def run(
        given: Sequence[Tensor | None], addresses: list[int | None]
    ) -> tuple[Tensor | None, ...]:
        tensors = [*given]
        for new in make:
            made = new()
            tensors.append(made)
            addresses.append(made.data_ptr())
        tensors += last
        addresses += last_addresses
        for start in starts:
            start(tensors, addresses)
        return take_returned(tensors)

    if native.load() is None:
        return run
    try:
        kernels = [
            _described(call, roles, one.compiled)
            for call, one in zip(calls, bound, strict=True)
            if call.grid
        ]
        made = list(makers)
        order = [made.index(name) if name in makers else -1 for name in returned]
        return native.run(len(given), make, [*fixed.values()], order, kernels, device, run)
    except Exception as error:  # whatever it is, Python can do the same
        native.log.debug("launches in Python: %s: %s", type(error).__name__, error)
        return run


def bind(call: Call, roles: Sequence[str], tensors: Sequence[Tensor | None], device: int) -> Bound:
    """Compile ``call`` for tensors like these. An empty grid does nothing.

    roles: what the tensors are. The last tensor is None, and stands for every role that is not among them.
    """
    if call.grid == 0:
        return Bound(lambda tensors, addresses: None)
    places = _places(call, roles)
    take = itemgetter(*places)
    arguments = (*call.ordered(call.integers), *call.ordered(call.constants))
    kernel, grid = call.kernel, call.grid
    options = {} if INTERPRETING else call.options

    def public(tensors: Sequence[Tensor | None], _addresses: Sequence[int | None]) -> None:
        kernel[(grid,)](*take(tensors), *arguments, **options)

    if INTERPRETING or not DIRECT:
        if call.cluster_size > 1:
            raise RuntimeError(f"{kernel.__name__}: only a direct launch can start clusters")
        return Bound(public)
    with _binding, copies_through_l1(call.cluster_size > 1):
        compiled = kernel.warmup(*take(tensors), *arguments, **options, grid=(1,))
        _ = compiled.run  # loads it
    if call.programs_per_sm and _is_for_cuda(compiled):
        leave_to_l1(compiled.function, compiled.metadata.shared, call.programs_per_sm, device)
    return Bound(_direct(call, compiled, places, device, public) or public, compiled)


def _is_for_cuda(compiled: Any) -> bool:
    return type(compiled.run).__name__ == "CudaLauncher"


def _places(call: Call, roles: Sequence[str]) -> list[int]:
    return [roles.index(role) if role in roles else -1 for role in call.roles]


def _direct(
    call: Call,
    compiled: Any,
    places: Sequence[int],
    device: int,
    public: Start,
) -> Start | None:
    """A start that skips Triton's own bookkeeping, or None where this Triton is not a known one."""
    if not is_known():
        return None
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    if call.cluster_size > 1:
        # Compiled as programs that know of no cluster, they are started as one: warps, programs to a cluster, shared.
        metadata = (metadata[0], call.cluster_size, metadata[2])
    middle: tuple[Any, ...]
    if VERSION == (3, 6) and _is_for_cuda(compiled) and not run.global_scratch_size:
        # The extension function under the launcher. After the function come: cooperative, programmatic,
        # two scratch buffers, metadata, launch metadata, two hooks, then the kernel's arguments.
        launch, middle = run.launch, (call.cooperative, False, None, None, metadata)
    else:
        launch, middle = run, (metadata,)
    unheard = (*middle, None, None, None)  # launch metadata, enter hook, exit hook
    current_stream = torch._C._cuda_getCurrentRawStream
    runtime, grid, clustered = knobs.runtime, call.grid, call.cluster_size > 1
    take = itemgetter(*places)
    arguments = (*call.ordered(call.integers), *call.ordered(call.constants))

    def direct(tensors: Sequence[Tensor | None], addresses: Sequence[int | None]) -> None:
        stream = current_stream(device)
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if (enter is None or not enter.calls) and (leave is None or not leave.calls):
            launch(grid, 1, 1, stream, function, *unheard, *take(addresses), *arguments)
        elif clustered:
            told = compiled.launch_metadata((grid, 1, 1), stream, *take(tensors), *arguments)
            heard = (*middle, told, enter, leave)
            launch(grid, 1, 1, stream, function, *heard, *take(addresses), *arguments)
        else:
            public(tensors, addresses)

    return direct


def _described(call: Call, roles: Sequence[str], compiled: Any) -> native.Kernel:
    """What the extension has to know of a launch; raises where only Triton's own launcher can start it."""
    if compiled is None or not is_known() or not _is_for_cuda(compiled):
        raise RuntimeError("this launcher is not known")
    run, metadata = compiled.run, compiled.packed_metadata
    if run.global_scratch_size or run.profile_scratch_size or run.launch_pdl:
        raise RuntimeError(f"{call.kernel.__name__} asks for more than a launch")
    places = {
        f"{role}_ptr": place for role, place in zip(call.roles, _places(call, roles), strict=True)
    }
    return native.Kernel(
        function=compiled.function,
        grid=call.grid,
        warps=metadata[0],
        shared=metadata[2],
        cooperative=call.cooperative,
        cluster_size=call.cluster_size,
        parameters=native.parameters(
            compiled.src.signature, compiled.asm["ptx"], places, call.integers
        ),
    )


def compile_for(call: Call, dtypes: Mapping[str, torch.dtype | None], target: GPUTarget) -> Any:
    """Compile ``call`` for a GPU that need not be here; ``dtypes`` names the tensors that are present."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for place, name in enumerate(call.kernel.arg_names):
        dtype = dtypes.get(name.removesuffix("_ptr"))
        if name in call.integers:
            signature[name] = "i32"
        elif name.endswith("_ptr") and dtype is not None:
            signature[name] = POINTER_TYPE[dtype]
            attributes[place,] = [["tt.divisibility", 16]]
        else:
            signature[name] = "constexpr"
            constants[place,] = call.constants.get(name)
    source = ASTSource(call.kernel, signature, constants, attributes)
    with copies_through_l1(call.cluster_size > 1):
        return triton.compile(source, target=target, options=call.options)
