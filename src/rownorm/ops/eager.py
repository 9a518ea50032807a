"""Autograd on the fast path: as little Python as possible between the caller and the kernels.

Autograd runs backward in another thread; touching Python objects there costs cache misses. So forward saves its
prepared call. The key of that call has the options and all properties of the inputs that a plan depends on, so backward
does not compare them again. As long as autograd returns the saved tensors at the same addresses, the backward call
depends only on the layout of the incoming gradients and on which gradients are needed.

Where kernels are started in C, the usual call is done in C too (eager.c and backward.c in launch/native), and in C++ as
soon as that is compiled (node.cpp); every other call comes here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from ..program import Program
from ..reference import BackwardInputs
from . import cpu_native, execute, library
from .autocast import autocast_options
from .autograd import (
    BackwardFunction,
    SingleLevelFunction,
    expand_shared,
    gradients,
    gradients_without_dy,
    shared_needs,
)
from .fast_path import (
    BACKWARD_CONDITIONS,
    FORWARD_CONDITIONS,
    can_skip_dispatcher,
    can_skip_dispatcher_in_backward,
    disable_function_modes,
    has_function_modes,
    is_autocast_enabled,
    is_profiler_enabled,
    profiled,
    saved_tensors_hooks,
)


class _EagerNorm(SingleLevelFunction):
    @staticmethod
    def forward(ctx, x, residual, pre_bias, weight, bias, options):  # type: ignore[no-untyped-def,override]
        inputs = (x, residual, pre_bias, weight, bias)
        outputs: Any = execute.forward_in_c(inputs, options, True) if x.is_cpu else None
        call, addresses = None, None
        if outputs is None:
            call, addresses = execute.find_forward(inputs, options, True)
            outputs = call(inputs, addresses)
        y, h, *statistics = outputs
        saved_h, saved_addresses = x if residual is None else h, None
        if saved_tensors_hooks(True):
            # The hooks may return other tensors, even at the same addresses.
            ctx.save_for_backward(saved_h, pre_bias, weight, bias, *statistics)
            statistics = ()
        else:
            # The statistics are not visible outside: autograd does not have to guard them.
            ctx.save_for_backward(saved_h, pre_bias, weight, bias)
            if addresses is not None:
                saved_addresses = [saved_h.data_ptr(), *addresses[2:5]]
        residual_dtype = None if residual is None else residual.dtype
        ctx.set_materialize_grads(False)
        # SavedForBackward in launch/native/eager.c has the same fields. A call is None if ``forward_in_c`` did it.
        ctx.forward_state = (call, saved_addresses, statistics, options, x.dtype, residual_dtype)
        return y if residual is None else (y, h)

    @staticmethod
    def backward(ctx, dy, dh=None, saved=None):  # type: ignore[no-untyped-def,override]
        """saved: ``ctx.saved_tensors``, if they were read already. Some hooks can be asked for them only once."""
        forward_call, saved_addresses, statistics, _, x_dtype, _ = ctx.forward_state
        if dy is None:
            return (*gradients_without_dy(dh, x_dtype, ctx.needs_input_grad[:5]), None)
        saved = ctx.saved_tensors if saved is None else saved
        inputs = (dy, dh, *saved, *statistics)
        if not can_skip_dispatcher_in_backward(dy, dh):
            return _gradients_by(library.backward, ctx, inputs)
        if forward_call is None and statistics:
            computed = _gradients_in_c(ctx, inputs)
            if computed is not None:
                return computed
        try:
            addresses: list[Any] = [None if t is None else t.data_ptr() for t in inputs]
        except RuntimeError:
            # Batched gradients (is_grads_batched) have no storage. The dispatcher splits them.
            return _gradients_by(library.backward, ctx, inputs)
        if addresses[2:6] != saved_addresses:
            is_plain = can_skip_dispatcher(*inputs[2:6])
            return _gradients_by(execute.backward if is_plain else library.backward, ctx, inputs)
        # A key of 5 fields; those of ``execute.find_backward`` have 11.
        key = (
            forward_call,
            ctx.needs_input_grad,
            # Autograd guarantees shape, dtype and device of the gradients, but not their layout and alignment.
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


def _apply(ctx, dy, dh=None):  # type: ignore[no-untyped-def]
    """What the engine calls of a node: ``backward``, with an entry in a profiler's trace."""
    if is_profiler_enabled():
        with profiled("rownorm::norm_backward"):
            return _backward(ctx, dy, dh)
    return _backward(ctx, dy, dh)


# The inherited one would only look up ``backward``.
_EagerNorm._backward_cls.apply = _apply  # type: ignore[attr-defined]

eager_norm = _EagerNorm.apply  # type: ignore[attr-defined]


def _not_in_c(*_: Any) -> Any:
    return NotImplemented


# ``norms._norm`` in C for the usual call on a GPU; NotImplemented for every other call, and until a kernel was needed.
norm_in_c: Callable[..., Any] = _not_in_c
# The Python functions, which the C functions of _install_native replace and fall back to.
_forward, _backward = _EagerNorm.forward, _EagerNorm.backward


def _gradients_by(backward: BackwardFunction, ctx: Any, inputs: tuple[Any, ...]) -> Any:
    """What ``_EagerNorm.backward`` returns, computed by ``backward``: without the shortcuts of forward's state."""
    *_, options, x_dtype, residual_dtype = ctx.forward_state
    needs = ctx.needs_input_grad[:5]
    program = Program(*options)
    return (*gradients(backward, program, x_dtype, residual_dtype, needs, inputs), None)


def _gradients_in_c(ctx: Any, inputs: tuple[Any, ...]) -> Any:
    """What ``_EagerNorm.backward`` returns, by the extension for CPUs; None where it does not apply."""
    *_, options, x_dtype, residual_dtype = ctx.forward_state
    needs, is_shared = ctx.needs_input_grad[:5], residual_dtype == x_dtype
    wanted = shared_needs(needs) if is_shared else needs
    computed = cpu_native.backward(inputs, options, residual_dtype is not None, wanted)
    if computed is None:
        return None
    return (*(expand_shared(computed, needs) if is_shared else computed), None)


def _find(ctx: Any, inputs: tuple[Any, ...]) -> execute.PreparedCall:
    """The prepared call that returns all five gradients, for tensors like these."""
    call, is_shared = _find_backward(ctx, inputs)
    if not is_shared:
        return call
    needs = ctx.needs_input_grad[:5]
    return lambda inputs, addresses: expand_shared(call(inputs, addresses), needs)


def _find_backward(ctx: Any, inputs: tuple[Any, ...]) -> tuple[execute.PreparedCall, bool]:
    """The prepared call of backward, and whether it is shared.

    Shared: x and the residual have one dtype, so one tensor is the gradient of both, and the call returns it as that of
    x.
    """
    *_, options, x_dtype, residual_dtype = ctx.forward_state
    tensors, program = BackwardInputs(*inputs), Program(*options).for_backward(x_dtype)
    needs = ctx.needs_input_grad[:5]
    if residual_dtype != x_dtype:
        return execute.find_backward(tensors, program, residual_dtype is not None, needs), False
    return execute.find_backward(tensors, program, True, shared_needs(needs)), True


def _install_native(launch: Any) -> None:
    """Replace forward and backward by the C functions, where the extension is in use."""
    native, module = launch.native, launch.native.load()
    # C sets the attributes that save_for_backward and set_materialize_grads set.
    if module is None or not {"to_save", "materialize_grads"} <= set(dir(_EagerNorm)):
        return

    def find_backward(ctx: Any, dy: Tensor, dh: Tensor | None, saved: tuple[Any, ...]) -> Any:
        """A prepared call of the extension that returns what ``backward`` returns; None where there is none."""
        _, _, statistics, *_ = ctx.forward_state
        call, is_shared = _find_backward(ctx, (dy, dh, *saved, *statistics))
        if not native.is_native(call):
            return None
        needs = ctx.needs_input_grad
        x_and_residual = (0 if needs[0] else -1, 0 if needs[1] else -1) if is_shared else (0, 1)
        return native.reordered(call, (*x_and_residual, 2, 3, 4, -1))

    def find_forward(inputs: Any, options: Any, want_statistics: bool) -> Any:
        """The prepared call of the extension for these inputs; None where there is none."""
        call, _ = execute.find_forward(inputs, options, want_statistics)
        return call if native.is_native(call) else None

    def first_norm_with_gradients(*arguments: Any) -> Any:
        """``eager_norm``; from now on C++ takes over as soon as it is ready."""
        module.use(record_forward=eager_norm)
        native.node.load_in_background(functools.partial(_install_node, module))
        return eager_norm(*arguments)

    module.use(
        find_forward=find_forward,
        forward_in_python=_forward,
        backward_in_python=_EagerNorm.backward,
        record_forward=first_norm_with_gradients,
        record_backward=_apply,
        is_grad_enabled=torch.is_grad_enabled,
        is_autocast_enabled=is_autocast_enabled,
        autocast_options=autocast_options,
        is_profiler_enabled=is_profiler_enabled,
        find_backward=find_backward,
        forward_conditions=FORWARD_CONDITIONS,
        backward_conditions=BACKWARD_CONDITIONS,
        has_function_modes=has_function_modes,
        function_stack_size=torch._C._len_torch_function_stack,
        function_stack_at=torch._C._get_function_stack_at,
        device_mode_type=DeviceContext,
        disable_function_modes=disable_function_modes,
        forward_ad=forward_ad,
        saved_tensors_hooks=saved_tensors_hooks,
    )
    global _backward, norm_in_c
    _backward, norm_in_c = module.unrecorded_backward, module.norm
    _EagerNorm.forward = module.forward  # type: ignore[method-assign]
    _EagerNorm._backward_cls.apply = module.apply  # type: ignore[attr-defined]


def _install_node(module: Any, node: Any) -> None:
    """Let the C++ extension record norms with gradients. module: the C extension."""
    node.use(module.interface, eager_norm, _EagerNorm.backward, NodeContext)
    module.use(record_forward=node.record)


execute.before_first_launch(_install_native)
