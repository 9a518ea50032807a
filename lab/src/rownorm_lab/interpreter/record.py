"""Record what kernels do in Triton's interpreter (``TRITON_INTERPRET=1`` before Triton is imported).

``recorded()`` wraps the interpreter's own methods for a grid, loads, stores and atomics. Every launch runs once in the
usual order, with all accesses recorded (``memory.py``), and again in shuffled orders, from the same contents: its
results must have the same bits.

A tensor of the meta device has no contents: loads give 0, stores go nowhere, and only addresses are checked. So sizes
can be tried that no machine holds. Of a launch with such tensors a few programs run, and a few turns of each loop.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl
from torch import Tensor
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from .arithmetic import mended
from .findings import RecordedLaunch, Recording, Site
from .loops import Rewriter, Turns, short, short_loops
from .memory import Argument, Array, Block, Memory, Region
from .patches import Patch, around, patched

TRITON = str(Path(triton.__file__).parent)
HERE = str(Path(__file__).parent)
SAMPLED = 6  # programs of a launch with tensors of the meta device
ACQUIRES = {ir.MEM_SEMANTIC.ACQUIRE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE}
RELEASES = {ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE}
SEED = 0
LANGUAGES = {id(tl), id(tl.core)}
Original = Callable[..., Any]  # what a method here replaces
Contents = list[tuple[Region, Array]]
# Called with the kernel, the number of the program and of all, over all orders in which a launch runs.
Progress = Callable[[str, int, int], None]


@contextmanager
def recorded(
    orders: int = 2,
    views_only: bool = False,
    everything: bool = False,
    wrapper: str = HERE,
    after: Callable[[Memory, Contents], None] | None = None,
    progress: Progress | None = None,
) -> Iterator[Recording]:
    """Record the launches of the block.

    orders: how many times a launch is repeated with its programs in another order. views_only: an access must stay
    inside of the tensors that the kernel was given, not only inside of their storages. everything: all accesses of all
    programs are kept, not only the first ones of the first and of the last. wrapper: a file of the caller that wraps
    loads as well, so that its lines are no kernel's. after: is called after every launch, with what its storages held
    before. progress: called before each program of each order.
    """
    recorder = _Recorder(orders, views_only, everything, (TRITON, HERE, wrapper), after, progress)
    with mended(), patched(recorder.patches()):
        try:
            yield recorder.recording
        finally:
            # The first launch of a kernel gives its module the names of the interpreter's, and with them this recorder.
            recorder.after = None


@dataclass(eq=False)
class _Recorder:
    orders: int
    views_only: bool
    everything: bool
    not_kernels: tuple[str, ...]  # files and folders
    after: Callable[[Memory, Contents], None] | None
    progress: Progress | None
    turn: int = 0  # of the orders in which the launch runs
    recording: Recording = field(default_factory=lambda: Recording([], []))
    memory: Memory | None = None
    grid: tuple[int, int, int] = (1, 1, 1)
    order: list[int] | None = None  # the programs that run, None: all
    ran: list[int] = field(default_factory=list)
    # Modules of Triton's language whose functions were replaced.
    replaced: set[int] = field(default_factory=set)
    # By id: a module's names, and what of Triton's they are.
    names: dict[int, tuple[Any, set[int]]] = field(default_factory=dict)
    far: bool = False  # whether the launch has tensors of the meta device
    atomic: str = ""  # the kind of the access that the interpreter makes of another operation

    def patches(self) -> list[Patch]:
        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        atomics = ("create_atomic_load", "create_atomic_store", "create_atomic_poll")
        return [
            around(executor, "__call__", self.launch),
            (executor, "_init_args_hst", lambda _, args, named: (args, named)),
            (executor, "_restore_args_dev", lambda *_: None),
            around(interpreter, "_implicit_cvt", self.converted),
            around(interpreter, "_patch_lang_core", self.ranges),
            around(interpreter, "_patch_lang", self.language),
            (interpreter.FunctionRewriter, "ast_transformer", Rewriter()),
            # A kernel sees the names of the interpreter's module.
            (interpreter, Turns.__name__, Turns),
            around(builder, "set_grid_dim", self.set_grid),
            around(builder, "set_grid_idx", self.set_program),
            around(builder, "create_masked_load", self.load),
            around(builder, "create_masked_store", self.store),
            around(builder, "create_atomic_rmw", self.read_modify_write),
            around(builder, "create_atomic_cas", self.compare_and_swap),
            # Operations of later versions.
            *(around(builder, name, self.as_atomic) for name in atomics if hasattr(builder, name)),
        ]

    # ---- launches ----

    def launch(self, call: Callable[..., None], executor: Any, *args: Any, **named: Any) -> None:
        given = dict(zip(executor.arg_names, args, strict=False)) | named
        args = tuple(
            _annotated(executor, *one) for one in zip(executor.arg_names, args, strict=False)
        )
        named = {name: _annotated(executor, name, value) for name, value in named.items()}
        arguments = [one for name, value in given.items() for one in _tensors(name, value)]
        number = len(self.recording.launches)
        name = executor.fn.__name__
        memory = Memory(number, name, arguments, self.views_only, self.everything)
        far = not all(region.backed for region in memory.regions)
        grid = executor.grid
        executor.grid = lambda args: self.begin(grid(args) if callable(grid) else grid, far)
        backed = [region for region in memory.regions if region.backed]
        before = [region.contents().copy() for region in backed]
        outer, self.memory, self.order, self.far = self.memory, memory, None, far
        self.replaced, self.turn = set(), 0
        try:
            with short_loops(executor.fn) if far else contextlib.nullcontext():
                call(executor, *args, **named)
            self.note(memory, executor)
            if not far and len(self.ran) > 1:
                after = [region.contents().copy() for region in backed]
                self.repeat(memory, before, after, lambda: call(executor, *args, **named))
            if self.after is not None:
                self.after(memory, list(zip(backed, before, strict=True)))
        finally:
            self.memory = outer
            executor.grid = grid
            self.recording.findings.extend(memory.found.values())

    def begin(self, grid: Any, far: bool) -> tuple[int, ...]:
        """The grid that the interpreter goes through: as many programs as are to run."""
        grid = (grid,) if isinstance(grid, int) else tuple(grid)
        x, y, z = (int(size) for size in (*grid, 1, 1)[:3])
        self.grid = x, y, z
        programs = x * y * z
        if self.order is None:
            some = {0, 1, programs // 2, *range(programs - SAMPLED // 2, programs)}
            wanted = sorted(one for one in some if 0 <= one < programs)
            self.order = wanted if far else list(range(programs))
        self.ran = self.order
        if self.memory is not None and self.order:
            ends = {self.order[0], self.order[-1]}
            self.memory.shown = set(self.order) if self.everything else ends
        return (len(self.order),)

    def repeat(
        self, memory: Memory, before: list[Any], after: list[Any], call: Callable[[], Any]
    ) -> None:
        """Run the launch again in other orders, from the same contents; the first result stays."""
        memory.recording = False
        backed = [region for region in memory.regions if region.backed]
        shuffler, programs = random.Random(SEED), self.ran
        for turn in range(self.orders):
            self.turn = turn + 1
            self.order = programs[::-1] if turn == 0 else shuffler.sample(programs, len(programs))
            for region, contents in zip(backed, before, strict=True):
                region.contents()[:] = contents
            self.replaced = set()
            with contextlib.redirect_stdout(io.StringIO()):
                call()
            for region, contents in zip(backed, after, strict=True):
                memory.compare(region, contents)
                region.contents()[:] = contents

    def note(self, memory: Memory, executor: Any) -> None:
        programs = int(np.prod(self.grid))
        self.recording.launches.append(
            RecordedLaunch(
                number=memory.number,
                kernel=executor.fn.__name__,
                grid=self.grid,
                sampled=len(self.ran) < programs,
                uses=[region.use() for region in memory.regions if region.backed],
                accesses=memory.accesses,
                reached=tuple(one.reach() for one in memory.regions if not one.backed),
            )
        )

    def converted(self, convert: Callable[[Any], Any], value: Any) -> Any:
        made = convert(value)
        if isinstance(value, _Wide):
            data = np.array([value], np.int64)
            return tl.tensor(interpreter.TensorHandle(data, tl.int64), tl.int64)
        tensor = _plain(value)
        if isinstance(tensor, Tensor) and self.memory is not None:
            region = self.memory.of_tensor[id(tensor)]
            made.handle.data = np.array([region.address(tensor)], np.uint64)
        return made

    def language(self, patch: Callable[[Any], Any], function: Any) -> Any:
        """The interpreter replaces Triton's functions at every call of a jit function, tl.sum too; once is enough."""
        names = function.__globals__
        if id(names) not in self.names:
            self.names[id(names)] = names, LANGUAGES & set(map(id, names.values()))
        used = self.names[id(names)][1]
        if used <= self.replaced:
            return interpreter._LangPatchScope()
        self.replaced |= used
        return patch(function)

    def ranges(self, patch: Callable[..., None], language: Any, scope: Any) -> None:
        """``tl.range`` in a launch with tensors of the meta device."""
        patch(language, scope)
        if self.far:
            scope.set_attr(language, "range", short)

    def set_grid(self, _: Any, builder: Any, *sizes: int) -> None:
        builder.grid_dim = self.grid

    def set_program(self, _: Any, builder: Any, place: int, *zeros: int) -> None:
        assert self.order is not None
        program = self.order[place]
        y, z = self.grid[1:]
        builder.grid_idx = (program // (y * z), program // z % y, program % z)
        if self.memory is not None:
            self.memory.program = program
            if self.progress is not None:
                size = len(self.order)
                runs = 1 if self.far or size == 1 else 1 + self.orders
                self.progress(self.memory.kernel, self.turn * size + place, runs * size)

    # ---- accesses ----

    def access(self, kind: str, pointers: Any, mask: Any, values: Any = None) -> tuple[Any, Any]:
        """(pointers, mask) with addresses of the process, without lanes that leave their tensor."""
        if self.memory is None:
            return pointers, mask
        shape = np.shape(pointers.data)
        addresses = np.ascontiguousarray(pointers.data, np.uint64).reshape(-1)
        active = np.broadcast_to(lanes_of(mask), shape).reshape(-1).astype(bool)
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        stored = None if values is None else np.broadcast_to(values.data, shape).reshape(-1)
        block = Block(addresses, active, width, self.site(self.atomic or kind), stored)
        real, allowed = self.memory.access(block)
        handle = interpreter.TensorHandle
        return handle(real.reshape(shape), pointers.dtype), handle(allowed.reshape(shape), tl.int1)

    def site(self, access: str) -> Site:
        """The line of the kernel that is running."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(self.not_kernels):
            frame = frame.f_back
        return Site(frame.f_code.co_filename, frame.f_lineno, access)

    def load(
        self,
        load: Callable[..., Any],
        builder: Any,
        pointers: Any,
        mask: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        return load(builder, *self.access("load", pointers, mask), *rest, **named)

    def store(
        self,
        store: Original,
        builder: Any,
        pointers: Any,
        value: Any,
        mask: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        pointers, mask = self.access("store", pointers, mask, value)
        return store(builder, pointers, value, mask, *rest, **named)

    def read_modify_write(
        self,
        change: Original,
        builder: Any,
        kind: Any,
        pointer: Any,
        value: Any,
        mask: Any,
        *rest: Any,
    ) -> Any:
        sem, scope = rest
        self.synchronize(pointer, lanes_of(mask), sem)
        pointer, mask = self.access("atomic", pointer, mask)
        return change(builder, kind, pointer, value, mask, sem, scope)

    def compare_and_swap(
        self, swap: Original, builder: Any, pointer: Any, compared: Any, value: Any, *rest: Any
    ) -> Any:
        sem, scope = rest
        everywhere = np.ones(np.shape(pointer.data), bool)
        self.synchronize(pointer, everywhere, sem)
        pointer, allowed = self.access("atomic", pointer, everywhere)
        if not lanes_of(allowed).all():
            return compared
        return swap(builder, pointer, compared, value, sem, scope)

    def as_atomic(self, operation: Original, builder: Any, pointer: Any, *rest: Any) -> Any:
        """An operation that the interpreter makes of loads and stores."""
        self.synchronize(pointer, np.ones(np.shape(pointer.data), bool), rest[-2])
        self.atomic = "atomic"
        try:
            return operation(builder, pointer, *rest)
        finally:
            self.atomic = ""

    def synchronize(self, pointer: Any, mask: Any, sem: Any) -> None:
        """An atomic of one element may order programs; a block of atomics is a sum."""
        if self.memory is not None and np.size(pointer.data) == 1 and bool(np.all(mask)):
            address = int(np.ravel(pointer.data)[0])
            self.memory.order(address, sem in ACQUIRES, sem in RELEASES)


class _Wide(int):
    """A number for a parameter that is annotated with tl.int64."""


def _annotated(executor: Any, name: str, value: Any) -> Any:
    """A number that a compiled kernel has as an int64: the interpreter ignores annotations."""
    kind = executor.fn.__annotations__.get(name)
    wide = str(kind).rpartition(".")[2] in ("int64", "i64")
    return _Wide(value) if wide and type(value) is int else value


def _tensors(name: str, value: Any) -> list[Argument]:
    """The tensors of one argument; those of a tuple have the name of its field or its place."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        inner = zip(names, value, strict=True)
        return [one for part, each in inner for one in _tensors(f"{name}.{part}", each)]
    if isinstance(value, TensorDescriptor):
        return _tensors(name, value.base)
    tensor = _plain(value)
    return [Argument(name.removesuffix("_ptr"), tensor)] if isinstance(tensor, Tensor) else []


def _plain(value: Any) -> Any:
    return value.base if isinstance(value, TensorWrapper) else value


def lanes_of(mask: Any) -> Any:
    """A mask's lanes; block pointers of Triton 3.6 and 3.7 give an array."""
    return mask if isinstance(mask, np.ndarray) else mask.data
