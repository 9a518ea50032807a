"""Watch a call of a learner's function: launches, operators of PyTorch, and memory that is not written or overrun.

``torch.empty`` and its relatives return memory that is NaN, with NaN before and after it. So an element that a kernel
does not store is noticed, and so is a store outside of the tensor. In the interpreter, masked lanes of a load without
``other`` are NaN: Triton leaves them undefined. Every access is recorded there, for races, bounds and the order of
programs, and every value that a kernel stores (``provenance``).
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.runtime import interpreter, jit
from triton.runtime.autotuner import Autotuner

from rownorm_lab.data.no_gpu import first_configuration
from rownorm_lab.interpreter.record import lanes_of, recorded

from .protocol import GUARD, POISON, Launched, Seen, Watch, unwritten
from .provenance import Provenance

BFLOAT16_NAN = 0x7FC0  # the interpreter holds bfloat16 as uint16


def threads() -> int:
    """Threads that Python started here, without those in which rownorm loads its extensions.

    On a GPU, autograd calls Python's backward functions in a thread of its own.
    """
    started = (one for one in threading.enumerate() if not isinstance(one, threading._DummyThread))
    return sum(not one.name.startswith("rownorm") for one in started)


THREADS = threads()  # before a learner's file is imported
ALLOCATIONS = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
}
FILLED = {
    *("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"),
    *("full", "full_like", "new_full", "scalar_tensor"),
}
COPIES = {"clone", "_to_copy", "copy_"}  # what is behind contiguous(), to() and reshape() too
# What makes new memory, with its contents or without.
CREATIONS = {
    *(ALLOCATIONS | FILLED),
    *("clone", "_to_copy", "rand", "randn", "resize_"),
}
VIEWS = {
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "as_strided", "set_", "alias"),
    *("slice", "select", "expand", "transpose", "permute", "t", "unsqueeze", "squeeze"),
    *("flatten", "split", "detach", "lift_fresh"),
}
OF_DTYPES = {"promote_types", "result_type", "can_cast"}
# What a function around a kernel may ask of PyTorch: memory, views, copies. All arithmetic is the kernel's.
HARMLESS = {
    *(ALLOCATIONS | FILLED | COPIES | VIEWS | OF_DTYPES),
    *("zero_", "fill_", "resize_", "is_pinned", "_local_scalar_dense"),
}


class Launch(NamedTuple):
    """One kernel launch: the kernel, its grid, and its arguments by name; options such as num_warps too."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]


class Observed(Seen, kw_only=True):
    """What happened during a call, with what does not leave this process."""

    started: list[Launch] = msgspec.field(default_factory=list)
    # (memory with its guards, elements between them)
    allocations: list[tuple[Tensor, int]] = msgspec.field(default_factory=list)
    provenance: Provenance | None = None  # in the interpreter

    def told(self) -> Seen:
        """What the grader is told."""
        self.overrun = any(
            unwritten(memory[edge]) < memory[edge].numel()
            for memory, size in self.allocations
            for edge in (slice(0, GUARD), slice(GUARD + size, None))
        )
        return Seen(**{name: getattr(self, name) for name in Seen.__struct_fields__})


class _Dispatch(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; otherwise torch imports its compiler, which takes longer than a step."""
        return False

    def __init__(self, seen: Observed) -> None:
        super().__init__()
        self.seen = seen
        self.launching = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        space, _, name = func._schema.name.partition("::")
        if space != "aten" and any(isinstance(one, Tensor) and one.is_meta for one in args):
            # An operator of the learner's own: its kernel, not the function that only gives shapes.
            return func._op_dk(torch._C.DispatchKey.CPU, *args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if self.launching or space != "aten":
            return result
        if name in CREATIONS and isinstance(result, Tensor):
            self.seen.created.append(result.numel())
        if name in COPIES and self.seen.provenance is not None:
            self.seen.provenance.copied(result, args[name == "copy_"])
        if isinstance(result, Tensor) and result.is_meta and name in ALLOCATIONS:
            return result
        if name in ALLOCATIONS and isinstance(result, Tensor) and result.dtype in POISON:
            return self._guarded(result)
        if name == "resize_":  # may reach into what was its guard, or have other memory
            self._without_guards(args[0])
        if name not in HARMLESS:
            self.seen.operators.append(name)
        return result

    def _guarded(self, model: Tensor) -> Tensor:
        size = model.untyped_storage().nbytes() // model.element_size()
        integers, poison = POISON[model.dtype]
        memory = torch.full((size + 2 * GUARD,), poison, dtype=integers, device=model.device)
        memory = memory.view(model.dtype)
        self.seen.allocations.append((memory, size))
        return memory.as_strided(model.shape, model.stride(), GUARD)

    def _without_guards(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()._cdata
        kept = [one for one in self.seen.allocations if one[0].untyped_storage()._cdata != storage]
        self.seen.allocations[:] = kept


@contextmanager
def observed(watch: Watch | None = None, given: Any = ()) -> Iterator[Observed]:
    """Watch everything in the block. given: the arguments of the call."""
    watch = watch or Watch()
    with contextlib.ExitStack() as stack:
        if knobs.runtime.interpret and watch.runs:
            provenance = Provenance(given)
            recording = stack.enter_context(
                recorded(
                    orders=watch.orders,
                    views_only=True,
                    everything=watch.everything,
                    wrapper=__file__,
                    after=provenance.launched,
                )
            )
            seen = Observed(
                findings=recording.findings, recorded=recording.launches, provenance=provenance
            )
        else:
            stack.enter_context(mock.patch.object(Autotuner, "run", first_configuration()))
            seen = Observed()
        for owner, name, what in (
            (threading.Thread, "start", "a thread"),
            (Tensor, "numpy", "numpy"),
            (Tensor, "__array__", "numpy"),
            (Tensor, "__dlpack__", "__dlpack__"),
            (Tensor, "tolist", "tolist"),
        ):
            stack.enter_context(mock.patch.object(owner, name, _noted(seen, owner, name, what)))
        if threads() > THREADS:
            seen.operators.append("a thread")
        with _launches_seen(seen, watch):
            yield seen


def _noted(seen: Observed, owner: Any, name: str, what: str) -> Callable[..., Any]:
    """A way around the dispatcher, which is not watched there: it is noted as an operator."""
    original = getattr(owner, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.operators.append(what)
        return original(*args, **kwargs)

    return noted


@contextmanager
def _launches_seen(seen: Observed, watch: Watch) -> Iterator[None]:
    dispatch = _Dispatch(seen)
    interpret, compiled = interpreter.GridExecutor.__call__, jit.JITFunction.run
    load = interpreter.InterpreterBuilder.create_masked_load
    reduction = interpreter.ReduceOps.__init__

    def masked_load(
        self: Any, ptrs: Any, mask: Any, other: Any, *options: Any, **named: Any
    ) -> Any:
        if (shape := list(np.shape(ptrs.data))) not in seen.blocks:
            seen.blocks.append(shape)
        if other is None and not lanes_of(mask).all():
            _note_place(seen)
            other = _undefined(ptrs, watch.masked)
        return load(self, ptrs, mask, other, *options, **named)

    def reduced(self: Any, axis: Any, combine_fn: Any, *options: Any) -> None:
        function = getattr(combine_fn, "fn", combine_fn)
        own = not function.__module__.startswith("triton.")
        seen.combined.append(function.__name__ if own else f"tl.{function.__name__}")
        reduction(self, axis, _Addition if own and watch.adds else combine_fn, *options)

    def interpreted_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(self.arg_names, args, strict=False)) | kwargs
        _note(seen, self.fn, self.arg_names, self.grid, named)
        return interpret(self, *args, **kwargs) if watch.runs else None

    def compiled_launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        named = dict(zip(self.arg_names, args, strict=False)) | kwargs
        _note(seen, self, self.arg_names, grid, named)
        if not watch.runs:
            return None
        dispatch.launching = True
        try:
            return compiled(self, *args, grid=grid, warmup=warmup, **kwargs)
        finally:
            dispatch.launching = False

    interpreter.GridExecutor.__call__, jit.JITFunction.run = interpreted_launch, compiled_launch
    interpreter.InterpreterBuilder.create_masked_load = masked_load
    interpreter.ReduceOps.__init__ = reduced
    try:
        with dispatch:
            yield
    finally:
        interpreter.GridExecutor.__call__, jit.JITFunction.run = interpret, compiled
        interpreter.InterpreterBuilder.create_masked_load = load
        interpreter.ReduceOps.__init__ = reduction


class _Addition:
    """In place of a function for tl.reduce. Of several values that are reduced together, each is added."""

    @staticmethod
    def fn(*both: Any) -> tuple[Any, ...]:
        half = len(both) // 2
        return tuple(a + b for a, b in zip(both[:half], both[half:], strict=True))


def _undefined(ptrs: Any, value: float) -> Any:
    """A block of ``value`` for the pointers' dtype; None if it is no floating-point dtype."""
    dtype = ptrs.get_element_ty()
    if dtype == tl.bfloat16 and np.isnan(value):
        data = np.full(ptrs.data.shape, BFLOAT16_NAN, np.uint16)
    elif dtype in (tl.float16, tl.float32, tl.float64):
        data = np.full(ptrs.data.shape, value, interpreter._get_np_dtype(dtype))
    else:
        return None
    return interpreter.TensorHandle(data, dtype)


def _note_place(seen: Observed) -> None:
    """Note the line of the kernel that is running."""
    frame, skipped = sys._getframe(1), (__file__, str(Path(triton.__file__).parent))
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
    place = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
    if place not in seen.unfilled:
        seen.unfilled.append(place)


def _note(seen: Observed, kernel: Any, names: list[str], grid: Any, given: dict[str, Any]) -> None:
    function = getattr(kernel, "fn", kernel)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    arguments = {name: value for name, value in (defaults | given).items() if name in names}
    options = {name: value for name, value in given.items() if name not in names}
    shape = grid(arguments) if callable(grid) else grid
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    seen.started.append(Launch(kernel, shape, arguments, options))
    told = {
        name: value
        for name, value in arguments.items()
        if value is None or isinstance(value, int | float | str | bool)
    }
    seen.launches.append(
        Launched(kernel=kernel.__name__, grid=[int(size) for size in shape], arguments=told)
    )
