"""Binding and starting kernels. Only this module and ``native`` touch the private interface of Triton's launcher.

``bind`` compiles a kernel once and returns the function that starts it. Triton's public ``kernel[grid](...)`` looks up
its cache of compiled kernels at every call, which costs more than the launch itself. Where the launcher of this
version of Triton is known (``is_known``), the compiled kernel is started directly.

The public interface is used for other versions, in the interpreter, and while a profiler has registered launch hooks
with Triton. It cannot start clusters: these are always started directly, and call the hooks themselves. With a version
of Triton that is not known, no plan has clusters, because ``device_of`` then reports none.

On an NVIDIA GPU the usual launch is done in C (``native``). This module stays the complete implementation, and does
every launch that the C code declines.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import native
from .l1_cache import copies_through_l1, reserve_for_l1
from .triton_version import FIRST_KNOWN_VERSION, LAST_KNOWN_VERSION, VERSION

# ``ops.execute.INTERPRETING`` is the same setting, read without importing Triton.
INTERPRETING = bool(knobs.runtime.interpret)
DIRECT = os.environ.get("ROWNORM_DIRECT_LAUNCH", "1") != "0"


def is_known() -> bool:
    """Whether the launcher of this version of Triton has been tested."""
    return FIRST_KNOWN_VERSION <= VERSION <= LAST_KNOWN_VERSION


# Triton's public interface cannot start a cluster of programs that were compiled as single programs.
CAN_START_CLUSTERS = DIRECT and not INTERPRETING and is_known()

POINTER_TYPE = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
}


class Call(NamedTuple):
    """One kernel and everything about its launch except the tensors. Its pointers are named ``<role>_ptr``."""

    kernel: Any
    grid: int
    num_warps: int
    integers: dict[str, Any]  # by name; None: the kernel has no such argument
    constants: dict[str, Any]
    cluster_size: int = 1  # programs in a cluster; above 1 the grid counts clusters
    maxnreg: int = 0  # most registers of a thread; 0: no limit
    cooperative: bool = False  # all programs have to be resident at the same time
    programs_per_sm: int = 0  # programs that must fit an SM together; 0: the driver decides
    # Whether the compiler may make one instruction of a product and a sum, which rounds once. All kernels are tuned,
    # and their accuracy is tested, with it; only where every step is rounded it would change the numbers. Without it
    # written down, an environment variable or another version of Triton would decide.
    fp_fusion: bool = True

    @property
    def options(self) -> dict[str, int]:
        """Triton's compiler options."""
        options = {"num_warps": self.num_warps, "enable_fp_fusion": self.fp_fusion}
        if self.maxnreg:
            options["maxnreg"] = self.maxnreg
        if self.cooperative:
            options["launch_cooperative_grid"] = True
        return options

    @property
    def roles(self) -> tuple[str, ...]:
        """The tensors that this kernel takes, in the order of its arguments."""
        names = self.kernel.arg_names
        return tuple(name.removesuffix("_ptr") for name in names if name.endswith("_ptr"))

    def ordered(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Those of ``values`` that this kernel takes, in the order of its arguments."""
        return tuple(values[name] for name in self.kernel.arg_names if name in values)


Allocated = dict[str, tuple[tuple[int, ...], torch.dtype]]  # by role: shape and dtype
NO_STAND_INS: Mapping[str, str] = MappingProxyType({})


class Steps(NamedTuple):
    """The kernels of one pass in order, and their tensors by role.

    tensors: those that are passed; one that no kernel reads has a name that no kernel has. allocated: the others.
    stand_ins: for a role without a tensor of its own, the role whose tensor a kernel gets instead; it is neither loaded
    from nor stored to.
    """

    calls: list[Call]
    tensors: Mapping[str, Tensor | None]
    allocated: Allocated
    stand_ins: Mapping[str, str] = NO_STAND_INS


# Triton shares a compiled kernel between threads before it is loaded, so one thread binds at a time.
_binding = threading.RLock()

# Starts a bound kernel, given the tensors and their addresses in the order of the roles it was bound with.
Start = Callable[[Sequence[Tensor | None], Sequence[int | None]], None]


class Bound(NamedTuple):
    """A kernel that is ready to start."""

    start: Start
    compiled: Any = None  # Triton's compiled kernel; None where Triton compiles at the first start


# (inputs, their addresses) -> outputs. It may append to the list of addresses.
PreparedCall = Callable[[Sequence[Tensor | None], list[int | None]], tuple[Tensor | None, ...]]


def bind_all(
    calls: Sequence[Call],
    inputs: Mapping[str, Tensor | None],
    allocators: Mapping[str, Callable[[], Tensor]],
    returned: Sequence[str],
    device: int,
    stand_ins: Mapping[str, str] = NO_STAND_INS,
) -> PreparedCall:
    """Compile ``calls``, and return a function that allocates, starts the kernels and returns some of the tensors.

    inputs, allocators: tensors by role. The function takes tensors like ``inputs``, in that order, with the same dtypes
    and alignment. returned: roles; None for those that have no allocator. stand_ins: see ``Steps``.
    """
    # The last tensor is None. Every role without a tensor gets its index, -1.
    roles = {role: index for index, role in enumerate((*inputs, *allocators))}
    roles |= {role: roles[other] for role, other in stand_ins.items()}
    allocate = tuple(allocators.values())
    take_returned = itemgetter(*(roles[role] if role in allocators else -1 for role in returned))
    example = (*inputs.values(), *[new() for new in allocate], None)
    bound = [bind(call, roles, example, device) for call in calls]
    starts = [kernel.start for kernel in bound]

    def prepared(
        inputs: Sequence[Tensor | None], addresses: list[int | None]
    ) -> tuple[Tensor | None, ...]:
        tensors = [*inputs]
        for new in allocate:
            tensor = new()
            tensors.append(tensor)
            addresses.append(tensor.data_ptr())
        tensors.append(None)
        addresses.append(None)
        for start in starts:
            start(tensors, addresses)
        return take_returned(tensors)

    if native.load() is None:
        return prepared
    try:
        kernels = [
            _native_kernel(call, roles, kernel.compiled)
            for call, kernel in zip(calls, bound, strict=True)
            if call.grid
        ]
        allocated = list(allocators)
        order = [allocated.index(role) if role in allocators else -1 for role in returned]
        return native.prepare(len(inputs), allocate, order, kernels, device, prepared)
    except Exception as error:  # any failure: Python can do the same
        native.log.debug("launches in Python: %s: %s", type(error).__name__, error)
        return prepared


def bind(
    call: Call, roles: Mapping[str, int], tensors: Sequence[Tensor | None], device: int
) -> Bound:
    """Compile ``call`` for tensors like these. With an empty grid, starting it does nothing.

    roles: the index among the tensors, by role. The last tensor is None, as in ``bind_all``.
    """
    if call.grid == 0:
        return Bound(lambda tensors, addresses: None)
    indices = _tensor_indices(call, roles)
    select = itemgetter(*indices)
    arguments = (*call.ordered(call.integers), *call.ordered(call.constants))
    kernel, grid = call.kernel, call.grid
    options = {} if INTERPRETING else call.options

    def public(tensors: Sequence[Tensor | None], _addresses: Sequence[int | None]) -> None:
        kernel[(grid,)](*select(tensors), *arguments, **options)

    if INTERPRETING or not DIRECT:
        if call.cluster_size > 1:
            raise RuntimeError(f"{kernel.__name__}: clusters need a direct launch")
        return Bound(public)
    with _binding, copies_through_l1(call.cluster_size > 1):
        compiled = kernel.warmup(*select(tensors), *arguments, **options, grid=(1,))
        _ = compiled.run  # loads it
    if call.programs_per_sm and _is_for_cuda(compiled):
        reserve_for_l1(compiled.function, compiled.metadata.shared, call.programs_per_sm, device)
    return Bound(_direct(call, compiled, indices, device, public) or public, compiled)


def _is_for_cuda(compiled: Any) -> bool:
    return type(compiled.run).__name__ == "CudaLauncher"


def _tensor_indices(call: Call, roles: Mapping[str, int]) -> list[int]:
    return [roles.get(role, -1) for role in call.roles]


def _direct(
    call: Call,
    compiled: Any,
    indices: Sequence[int],
    device: int,
    public: Start,
) -> Start | None:
    """A start that skips Triton's own bookkeeping, or None where this version of Triton is not known."""
    if not is_known():
        return None
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    if call.cluster_size > 1:
        # Compiled as single programs, started as clusters. The metadata: warps, programs in a cluster, shared memory.
        metadata = (metadata[0], call.cluster_size, metadata[2])
    before_hooks: tuple[Any, ...]
    if VERSION == (3, 6) and _is_for_cuda(compiled) and not run.global_scratch_size:
        # The C function that the launcher wraps. Its arguments after the kernel: cooperative, programmatic, two
        # scratch buffers, metadata, launch metadata, two hooks, then the kernel's arguments.
        launch, before_hooks = run.launch, (call.cooperative, False, None, None, metadata)
    else:
        launch, before_hooks = run, (metadata,)
    without_hooks = (*before_hooks, None, None, None)  # launch metadata, enter hook, exit hook
    current_stream = torch._C._cuda_getCurrentRawStream
    runtime, grid, clustered = knobs.runtime, call.grid, call.cluster_size > 1
    select = itemgetter(*indices)
    arguments = (*call.ordered(call.integers), *call.ordered(call.constants))

    def direct(tensors: Sequence[Tensor | None], addresses: Sequence[int | None]) -> None:
        stream = current_stream(device)
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if (enter is None or not enter.calls) and (leave is None or not leave.calls):
            launch(grid, 1, 1, stream, function, *without_hooks, *select(addresses), *arguments)
        elif clustered:
            described = compiled.launch_metadata((grid, 1, 1), stream, *select(tensors), *arguments)
            with_hooks = (*before_hooks, described, enter, leave)
            launch(grid, 1, 1, stream, function, *with_hooks, *select(addresses), *arguments)
        else:
            public(tensors, addresses)

    return direct


def _native_kernel(call: Call, roles: Mapping[str, int], compiled: Any) -> native.Kernel:
    """The launch as the extension takes it; raises where only Triton's own launcher can start it."""
    if compiled is None or not is_known() or not _is_for_cuda(compiled):
        raise RuntimeError("Triton's launcher is not one that is known")
    run, metadata = compiled.run, compiled.packed_metadata
    if run.global_scratch_size or run.profile_scratch_size or run.launch_pdl:
        raise RuntimeError(f"{call.kernel.__name__} needs scratch memory or dependent launches")
    indices = _tensor_indices(call, roles)
    by_argument = {f"{role}_ptr": index for role, index in zip(call.roles, indices, strict=True)}
    return native.Kernel(
        function=compiled.function,
        grid=call.grid,
        warps=metadata[0],
        shared=metadata[2],
        cooperative=call.cooperative,
        cluster_size=call.cluster_size,
        parameters=native.parameters(
            compiled.src.signature, compiled.asm["ptx"], by_argument, call.integers
        ),
    )


def compile_for(call: Call, dtypes: Mapping[str, torch.dtype | None], target: GPUTarget) -> Any:
    """Compile ``call`` for a GPU that need not be present. dtypes: of the tensors, by role; the others are None.

    A later launch with such tensors finds the kernel in Triton's cache: its key depends on all that is passed here.
    """
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for position, name in enumerate(call.kernel.arg_names):
        dtype = dtypes.get(name.removesuffix("_ptr"))
        if call.integers.get(name) is not None:
            signature[name] = "i32"
        elif name.endswith("_ptr") and dtype is not None:
            signature[name] = POINTER_TYPE[dtype]
            attributes[position,] = [["tt.divisibility", 16]]
        else:
            signature[name] = "constexpr"
            constants[position,] = call.constants.get(name)
            for place in _attributes_of_constant(position, constants[position,]):
                attributes[place] = []
    if VERSION > (3, 6) and call.cluster_size > 1:
        # The hook of ``copies_through_l1`` counts as an argument.
        attributes[len(call.kernel.arg_names),] = []
    source = ASTSource(call.kernel, signature, constants, attributes)
    with copies_through_l1(call.cluster_size > 1):
        return triton.compile(source, target=target, options=call.options)


def _attributes_of_constant(position: int, value: Any) -> list[tuple[int, ...]]:
    """The places for which a launch lists attributes, although a constant has none.

    Triton 3.6 takes every string for attributes, those in a tuple, too.
    """
    if VERSION > (3, 6) or isinstance(value, str):
        return [(position,)]
    if isinstance(value, tuple):
        return [(position, i) for i, one in enumerate(value) if isinstance(one, str)]
    return []
