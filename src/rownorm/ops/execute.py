"""Run the row program on real tensors: kernels for a GPU, PyTorch for a CPU.

The key of a call is everything that its checks, its plan and its compiled kernels depend on (``call_key``). The first
call with a key is checked, planned and compiled, and its prepared call is stored. Later calls look it up.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..program import SAMPLES, Inputs, Program, has_numbers
from ..reference import BackwardInputs, Gradients
from . import cpu, cpu_native
from .call_key import forward_key, tensor_key
from .checks import check, check_backward, check_memory

# With TRITON_INTERPRET=1, tensors on the CPU use the kernels, in Triton's interpreter. ``launcher.INTERPRETING`` asks
# Triton for the same setting. It is read here as well, because a call on a CPU imports Triton only to build its
# extension.
INTERPRETING = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")
MAX_PREPARED_CALLS = 4096  # of each direction; when there are more, all of them are dropped

ForwardResult = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # y, h, mu, rstd
PreparedCall = Callable[[tuple[Any, ...], list[Any]], Any]  # (inputs, their addresses) -> outputs

_forward_calls: dict[Any, PreparedCall] = {}
# Two kinds of keys: those of ``find_backward``, and those of ``eager``, which have 5 fields. The others have more, so a
# key of one kind never equals one of the other.
_backward_calls: dict[Any, PreparedCall] = {}
_launch: Any = None  # rownorm.launch, once it is imported
_launch_lock = threading.RLock()
_before_first_launch: list[Callable[[Any], None]] = []


def _renew_lock() -> None:
    """In a fork: a thread that held the lock, to import Triton and to build the C extension, is not there."""
    global _launch_lock
    _launch_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def forward(*arguments: Any) -> ForwardResult:
    """(y, h, mu, rstd). ``h`` is None without a residual; the statistics may be, unless they are wanted.

    arguments: the tensors of ``Inputs``, options, want_statistics.
    """
    inputs, options, want_statistics = arguments[:-2], arguments[-2], arguments[-1]
    outputs = forward_in_c(inputs, options, want_statistics) if inputs[0].is_cpu else None
    if outputs is not None:
        return outputs
    call, addresses = find_forward(inputs, options, want_statistics)
    return call(inputs, addresses)


def forward_in_c(
    inputs: tuple[Any, ...], options: tuple[Any, ...], want_statistics: bool
) -> ForwardResult | None:
    """``forward`` by the extension for CPUs, which needs no key; None where it does not apply."""
    return None if INTERPRETING else cpu_native.forward(inputs, options, want_statistics)


def find_forward(
    inputs: tuple[Any, ...], options: tuple[Any, ...], want_statistics: bool
) -> tuple[PreparedCall, list[Any]]:
    """The prepared call for tensors like these, and the addresses of these tensors.

    inputs: in the order of ``Inputs``. options: a Program, or its fields in a plain tuple, which is an equal key.
    """
    try:
        addresses, key = forward_key(inputs, options, want_statistics)
        call = _forward_calls.get(key)
    except (RuntimeError, TypeError):
        # A tensor without storage, or an option that cannot be hashed: the checks raise a better error.
        check(inputs, Program(*options))
        raise
    check_memory(Inputs._fields, inputs, addresses)
    if call is None or not has_numbers(options):
        program = Program(*options)
        check(inputs, program)
        call = store(_forward_calls, key, _prepare_forward(inputs, program, want_statistics))
    return call, addresses


def _prepare_forward(
    inputs: tuple[Any, ...], program: Program, want_statistics: bool
) -> PreparedCall:
    x = inputs[0]
    if not takes_kernels(x):
        return cpu.prepare(Inputs(*inputs), program, want_statistics)
    rows = launch_layer().rows
    if rows.unreadable(Inputs(*inputs), program):
        # The kernels can read the copies, so this second call of ``forward`` finds a call without another copy.
        return lambda inputs, _: forward(
            *rows.readable(Inputs(*inputs), program), program, want_statistics
        )
    prepare = launch_layer().forward.prepare
    return _on_device(x, functools.partial(prepare, Inputs(*inputs), program, want_statistics))


def backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """Gradients of the inputs, those that are wanted."""
    call = find_backward(inputs, program, has_residual, wanted)
    addresses = [None if t is None else t.data_ptr() for t in inputs]
    check_memory(BackwardInputs._fields, inputs, addresses)
    return Gradients._make(call(inputs, addresses))


def find_backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> PreparedCall:
    """The prepared call of ``backward`` for tensors like these."""
    if not takes_kernels(inputs.h):
        check_backward(inputs)
        return lambda inputs, _: cpu.backward(
            BackwardInputs(*inputs), program, has_residual, wanted
        )
    tensors = [None if t is None else tensor_key(t, t.data_ptr()) for t in inputs]
    key = (program, has_residual, wanted, *tensors)
    call = _backward_calls.get(key)
    if call is None:
        check_backward(inputs)
        prepared = _prepare_backward(inputs, program, has_residual, wanted)
        call = store(_backward_calls, key, prepared)
    return call


def _prepare_backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> PreparedCall:
    if launch_layer().rows.unreadable(inputs, program):
        # As in _prepare_forward: the second call of ``backward`` gets tensors that the kernels can read.
        return lambda inputs, _: _backward_of_copies(
            BackwardInputs(*inputs), program, has_residual, wanted
        )
    prepare = launch_layer().backward.prepare
    return _on_device(inputs.h, functools.partial(prepare, inputs, program, has_residual, wanted))


def _backward_of_copies(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """``backward`` of tensors that the kernels cannot read: of copies, in which samples may be larger.

    They are in the dtype of the statistics, so that their gradients are rounded once, after they were summed.
    """
    wide = {
        name: t.to(inputs.rstd.dtype)
        for name in SAMPLES
        if (t := getattr(inputs, name)) is not None
    }
    copies = launch_layer().rows.readable(inputs._replace(**wide), program)
    computed = backward(copies, program, has_residual, wanted)
    sums = {
        name: gradient.sum_to_size(like.shape).to(like.dtype)
        for name in SAMPLES
        if (gradient := getattr(computed, name)) is not None
        and (like := getattr(inputs, name)) is not None
    }
    return computed._replace(**sums)


def takes_kernels(x: Tensor) -> bool:
    """Whether the kernels compute this tensor."""
    return x.is_cuda or (INTERPRETING and x.device.type == "cpu")


def store(calls: dict[Any, Any], key: Any, call: Any) -> Any:
    """Store ``call`` and return it."""
    if len(calls) >= MAX_PREPARED_CALLS:
        calls.clear()
    calls[key] = call
    return call


def launch_layer() -> Any:
    """``rownorm.launch``, imported with Triton when a kernel is first needed, once for all threads."""
    global _launch
    if _launch is None:
        with _launch_lock:
            if _launch is None:
                from .. import launch

                launch.on_change(_forget)
                for function in _before_first_launch:
                    function(launch)
                _launch = launch
    return _launch


def before_first_launch(function: Callable[[Any], None]) -> None:
    """Register ``function(launch)`` to be called once, before the first kernel is prepared."""
    _before_first_launch.append(function)


def _forget() -> None:
    """Drop every prepared call, because plans may have changed."""
    _forward_calls.clear()
    _backward_calls.clear()
    launch_layer().native.forget()


def _on_device(t: Tensor, prepare: Callable[[], Any]) -> Any:
    """The prepared call that ``prepare`` makes on the device of ``t``. It switches to that device when it is called."""
    device = t.get_device()
    with torch.cuda.device_of(t):
        call = prepare()
    if device < 0 or torch.cuda.device_count() == 1:
        return call

    def call_on_device(inputs: tuple[Any, ...], addresses: list[Any]) -> Any:
        if torch._C._cuda_getDevice() == device:
            return call(inputs, addresses)
        with torch.cuda.device(device):
            return call(inputs, addresses)

    native = launch_layer().native
    return (
        native.checking_device(call, call_on_device) if native.is_native(call) else call_on_device
    )
