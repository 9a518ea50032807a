"""Norms called eagerly: the autograd function, and the native code that stands in for Python.

``_EagerNorm`` records a norm with gradients. Forward saves its prepared call. The key of that call has the options and
all properties of the inputs that a plan depends on, so backward does not compare them again. As long as autograd
returns the saved tensors at the same addresses, the backward call depends only on the layout of the incoming gradients
and on which gradients are needed.

``native`` is how calls are made: in C without a gradient (eager.c in launch/native), in C++ with one (node.cpp), as
soon as each of them is there. Both give an unusual call back to Python.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from ..program import INPUTS, Program
from ..reference import BackwardInputs
from . import cpu_native, execute, library
from .autocast import autocast_options
from .autograd import (
    BackwardFunction,
    SingleLevelFunction,
    expand_shared,
    gradients,
    gradients_without_dy,
    h_needs_gradient,
    is_shared,
    saved_tensors,
    shared_needs,
    to_save,
)
from .checks import RowsOf, check_gradients, check_memory, has_memory
from .fast_path import (
    CONDITIONS,
    can_skip_dispatcher,
    can_skip_dispatcher_in_backward,
    disable_function_modes,
    has_dispatch_modes,
    has_function_modes,
    is_autocast_enabled,
    is_profiler_enabled,
    profiled,
    saved_tensors_hooks,
)

log = logging.getLogger(__name__)
N_INPUTS = len(INPUTS)
_RESIDUAL_GATE = tuple(INPUTS).index("residual_gate")
# As the process was started: a native call on a CPU would pass the interpreter by.
INTERPRETING = execute.INTERPRETING


class _EagerNorm(SingleLevelFunction):
    @staticmethod
    def forward(ctx, *arguments):  # type: ignore[no-untyped-def,override]
        inputs, options = arguments[:-1], arguments[-1]
        x, residual = inputs[0], inputs[1]
        outputs: Any = execute.forward_in_c(inputs, options, True) if x.is_cpu else None
        call = saved_addresses = residual_dtype = None
        if outputs is None:
            call, addresses = execute.find_forward(inputs, options, True)
            outputs = call(inputs, addresses)
        y, h, _, _ = outputs
        saved = to_save(inputs, outputs)
        if residual is not None:
            residual_dtype = residual.dtype
            if not h_needs_gradient(inputs):
                ctx.mark_non_differentiable(h)
        ctx.save_for_backward(*saved)
        if call is not None and not saved_tensors_hooks(True):
            # Hooks may return other tensors, even at the same addresses.
            saved_addresses = [None if t is None else t.data_ptr() for t in saved]
        ctx.set_materialize_grads(False)
        # ``context`` in launch/native/node.cpp makes the same tuple. The call is None if ``forward_in_c`` did it.
        ctx.forward_state = (call, saved_addresses, options, x.dtype, residual_dtype)
        ctx.rows_of_h = None if h is None else RowsOf(h.shape, h.dtype, h.device)
        ctx.has_residual_gate = inputs[_RESIDUAL_GATE] is not None
        return y if residual is None else (y, h)

    @staticmethod
    def backward(ctx, dy, dh=None, saved=None):  # type: ignore[no-untyped-def,override]
        """saved: ``ctx.saved_tensors``, if they were read already. Some hooks can be asked for them only once."""
        forward_call, saved_addresses, options, x_dtype, _ = ctx.forward_state
        if dy is None:
            if ctx.rows_of_h is not None and not has_dispatch_modes():
                check_gradients(None, dh, like=ctx.rows_of_h)
            return (*gradients_without_dy(ctx, dh, x_dtype, ctx.needs_input_grad[:N_INPUTS]), None)
        saved = saved_tensors(ctx) if saved is None else saved
        inputs = (dy, dh, *saved)
        # Autograd passes only gradients like the outputs, but ``grad_fn.apply(...)`` passes anything. While compiled
        # autograd traces, some have a shape that stands for any; the operator checks those of the compiled graph.
        if not has_dispatch_modes():
            y_dtype = Program(*options).result_dtype(x_dtype)
            check_gradients(dy, dh, like=saved[0], y_dtype=y_dtype)
        if not can_skip_dispatcher_in_backward(dy, dh):
            return _gradients_by(library.backward, ctx, inputs)
        if forward_call is None:
            computed = _gradients_in_c(ctx, inputs)
            if computed is not None:
                return computed
        try:
            addresses: list[Any] = [None if t is None else t.data_ptr() for t in inputs]
        except RuntimeError:
            # Batched gradients (is_grads_batched) have no storage. The dispatcher splits them.
            return _gradients_by(library.backward, ctx, inputs)
        if saved_addresses is None or addresses[2:] != saved_addresses:
            # A subclass, for example, that a hook on saved tensors returned.
            is_plain = can_skip_dispatcher(*inputs[2:])
            return _gradients_by(execute.backward if is_plain else library.backward, ctx, inputs)
        check_memory(BackwardInputs._fields, inputs, addresses)
        # A key of 5 fields; those of ``execute.find_backward`` have more.
        key = (
            forward_call,
            ctx.needs_input_grad,
            dy.is_contiguous() or dy.stride(),
            addresses[0] & 15,
            dh is not None and (dh.is_contiguous() or dh.stride(), addresses[1] & 15),
        )
        call = execute._backward_calls.get(key)
        if call is None:
            call = execute.store(execute._backward_calls, key, _find(ctx, inputs))
        return (*call(inputs, addresses), None)


class NodeContext(NamedTuple):
    """What ``_EagerNorm.backward`` reads of its ctx, for a node that node.cpp made."""

    forward_state: tuple[Any, ...]
    saved_tensors: tuple[Any, ...]
    needs_input_grad: tuple[bool, ...]
    has_residual_gate: bool
    rows_of_h: RowsOf | None = None  # node.cpp has checked the gradients


def _apply(ctx, dy, dh=None):  # type: ignore[no-untyped-def]
    """What the engine calls of a node: ``backward``, with an entry in a profiler's trace."""
    if is_profiler_enabled():
        with profiled("rownorm::norm_backward"):
            return _EagerNorm.backward(ctx, dy, dh)
    return _EagerNorm.backward(ctx, dy, dh)


# The inherited one would only look up ``backward``.
_EagerNorm._backward_cls.apply = _apply  # type: ignore[attr-defined]

eager_norm = _EagerNorm.apply  # type: ignore[attr-defined]


def _gradients_by(backward: BackwardFunction, ctx: Any, inputs: tuple[Any, ...]) -> Any:
    """What ``_EagerNorm.backward`` returns, computed by ``backward``: without the shortcuts of forward's state."""
    *_, options, x_dtype, residual_dtype = ctx.forward_state
    needs = ctx.needs_input_grad[:N_INPUTS]
    program = Program(*options)
    return (*gradients(backward, program, x_dtype, residual_dtype, needs, inputs), None)


def _gradients_in_c(ctx: Any, inputs: tuple[Any, ...]) -> Any:
    """What ``_EagerNorm.backward`` returns, by the extension for CPUs; None where it does not apply."""
    *_, options, x_dtype, residual_dtype = ctx.forward_state
    needs, shares = ctx.needs_input_grad[:N_INPUTS], is_shared(x_dtype, residual_dtype, inputs[2:])
    wanted = shared_needs(needs) if shares else needs
    computed = cpu_native.backward(inputs, options, residual_dtype is not None, wanted)
    if computed is None:
        return None
    return (*(expand_shared(computed, needs) if shares else computed), None)


def _find(ctx: Any, inputs: tuple[Any, ...]) -> execute.PreparedCall:
    """The prepared call that returns all gradients, for tensors like these."""
    call, shares = _find_backward(ctx, inputs)
    if not shares:
        return call
    needs = ctx.needs_input_grad[:N_INPUTS]
    return lambda inputs, addresses: expand_shared(call(inputs, addresses), needs)


def _find_backward(ctx: Any, inputs: tuple[Any, ...]) -> tuple[execute.PreparedCall, bool]:
    """The prepared call of backward, and whether it is shared: whether one tensor is the gradient of x and of the
    residual, which the call returns as that of x.
    """
    *_, options, x_dtype, residual_dtype = ctx.forward_state
    tensors, program = BackwardInputs(*inputs), Program(*options).for_backward(x_dtype)
    needs = ctx.needs_input_grad[:N_INPUTS]
    if not is_shared(x_dtype, residual_dtype, inputs[2:]):
        return execute.find_backward(tensors, program, residual_dtype is not None, needs), False
    return execute.find_backward(tensors, program, True, shared_needs(needs)), True


def _not_in_c(*_: Any) -> Any:
    return NotImplemented


class Native:
    """How calls are made. Every call reads ``norm`` and ``record`` here, so that each is replaced in one place.

    norm(*inputs, options): ``norms._norm`` in C for the usual call;
    NotImplemented for every other call, and until the extension is loaded: with the first kernel, or without a GPU
    after the first norm with gradients, in the background.
    module_norm(x, weight, bias, options, normalized_shape): the same for a module.
    record(*inputs, options): y, or (y, h) with a residual, with a gradient.
    """

    def __init__(self) -> None:
        self.norm: Callable[..., Any] = _not_in_c
        self.module_norm: Callable[..., Any] = _not_in_c
        self.record: Callable[..., Any] = self._first_record
        self._module: Any = None  # the C extension, where it is in use
        self._node: Any = None  # the C++ extension
        self._cpu: Any = None  # the extension for CPUs, where norms on a CPU are recorded in C++
        self._lock = threading.RLock()  # the C++ is installed from another thread
        self._has_asked_for_node = False

    def use_c(self, launch: Any) -> None:
        """Let the C extension do calls without a gradient, where it is in use. launch: ``rownorm.launch``."""
        module = launch.native.load()
        if module is not None:
            self._use_module(launch.native, module)

    def _use_module(self, layer: Any, module: Any) -> None:
        def find_forward(inputs: Any, options: Any, want_statistics: bool) -> Any:
            """The prepared call of the extension for these inputs; None where there is none."""
            call, _ = execute.find_forward(inputs, options, want_statistics)
            return call if layer.is_native(call) else None

        def find_backward(ctx: Any, dy: Tensor, dh: Tensor | None, saved: tuple[Any, ...]) -> Any:
            """A prepared call of the extension that returns all gradients; None where there is none."""
            call, shares = _find_backward(ctx, (dy, dh, *saved))
            if not layer.is_native(call):
                return None
            needs = ctx.needs_input_grad
            x_and_residual = (0 if needs[0] else -1, 0 if needs[1] else -1) if shares else (0, 1)
            return layer.reordered(call, (*x_and_residual, *range(2, N_INPUTS), -1))

        module.use(
            find_forward=find_forward,
            find_backward=find_backward,
            has_memory=has_memory,
            is_grad_enabled=torch.is_grad_enabled,
            is_inference_mode_enabled=torch.is_inference_mode_enabled,
            is_autocast_enabled=is_autocast_enabled,
            autocast_options=autocast_options,
            conditions=CONDITIONS,
            has_function_modes=has_function_modes,
            function_stack_size=torch._C._len_torch_function_stack,
            function_stack_at=torch._C._get_function_stack_at,
            device_mode_type=DeviceContext,
            disable_function_modes=disable_function_modes,
            forward_ad=forward_ad,
        )
        self._module = module
        self._connect()
        self.norm, self.module_norm = module.norm, module.module_norm

    def use_node(self, node: Any) -> None:
        """Let the C++ extension record norms with gradients."""
        torch.autograd.graph.Node.register(node.NormBackward)
        cpu = None if INTERPRETING else cpu_native.load()
        with self._lock:
            self._node, self._cpu = node, cpu
            self._connect()
        has_gpu = torch.version.cuda is not None and torch.cuda.device_count() > 0
        if cpu is not None and self._module is None and not has_gpu:
            from ..launch import native as layer

            self._use_module(layer, layer.load_for_cpu())

    def _connect(self) -> None:
        """Pass to each extension what it needs of the others. In any order: each is loaded at its own time."""
        with self._lock:
            cpu, node, module = self._cpu, self._node, self._module
            if node is not None:
                on_cpu = (None, None) if cpu is None else (cpu.forward, cpu.backward)
                interface = None if module is None else module.interface
                if cpu is not None:
                    cpu.use_allocator(node.allocator)
                node.use(interface, *on_cpu, eager_norm, _EagerNorm.backward, NodeContext)
                self.record = node.record
            if module is not None:
                forward_on_cpu = None if cpu is None else cpu.forward
                module.use(record=self.record, forward_on_cpu=forward_on_cpu)

    def _first_record(self, *arguments: Any) -> Any:
        """``eager_norm``; from now on C++ takes over as soon as it is ready."""
        outputs = eager_norm(*arguments)  # it loads the extensions that the node needs
        with self._lock:
            is_first, self._has_asked_for_node = not self._has_asked_for_node, True
            if is_first:
                self._record_by(eager_norm)
        if is_first:
            self._ask_for_node()
        return outputs

    def _ask_for_node(self) -> None:
        if INTERPRETING or (self._module is None and cpu_native.load() is None):
            return
        try:
            # Here rather than in the thread: a process that is forked during an import may wait for it for ever.
            from ..launch.native import node  # it imports Triton
        except Exception as error:  # any failure: Python goes on recording
            log.debug("norms are recorded in Python: %s: %s", type(error).__name__, error)
            return
        node.load_in_background(self.use_node)

    def _record_by(self, record: Callable[..., Any]) -> None:
        with self._lock:
            self.record = record
            self._connect()


native = Native()
execute.before_first_launch(native.use_c)


def _renew_lock() -> None:
    """In a fork: a thread that held the lock, to install an extension, is not there."""
    native._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
