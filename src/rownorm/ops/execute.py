"""Run the row program now, on real tensors: kernels for a GPU, PyTorch for a CPU.

A call is recognised by everything that its checks, its plan and its compiled kernels depend on. The first
call of its kind does all of that work and keeps the function that remains; the next finds it with one look-up.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..program import Program
from ..reference import Given, Gradients
from . import cpu
from .checks import check

# With TRITON_INTERPRET=1, tensors on the CPU take the kernels, in Triton's interpreter.
INTERPRETING = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")
MOST_RUNS = 4096  # kinds of call remembered; past that, all are forgotten and found again

Statistics = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # y, h, mu, rstd

_forward_runs: dict[Any, Any] = {}
_backward_runs: dict[Any, Any] = {}


def forward(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    options: tuple[Any, ...],
    want_statistics: bool,
) -> Statistics:
    """(y, h, mu, rstd): ``h`` with a residual; the statistics only where they are wanted.

    options: a Program, or its fields in a plain tuple; as a key they are equal.
    """
    try:
        key = (
            options,
            want_statistics,
            # _facts(x)
            x.shape,
            x.is_contiguous() or x.stride(),
            x.dtype,
            x.get_device(),
            x.is_cpu,
            x.data_ptr() & 15,
            None if residual is None else _facts(residual),
            None if pre_bias is None else _facts(pre_bias),
            None if weight is None else _facts(weight),
            None if bias is None else _facts(bias),
        )
        run = _forward_runs.get(key)
    except (RuntimeError, TypeError):
        # A tensor without storage, an option that cannot be hashed: the checks have words for these.
        check(x, residual, pre_bias, weight, bias, Program(*options))
        raise
    if run is None:
        program = Program(*options)
        check(x, residual, pre_bias, weight, bias, program)
        given = (x, residual, pre_bias, weight, bias)
        if not takes_kernels(x):
            run = _remember(_forward_runs, key, cpu.prepare(*given, program, want_statistics))
            return run(*given)
        launch = _launch()
        taken = (*map(launch.with_row_stride, given[:2]), *map(launch.contiguous, given[2:]))
        if any(new is not old for new, old in zip(taken, given, strict=True)):
            return forward(*taken, program, want_statistics)  # type: ignore[call-arg]
        prepare = functools.partial(launch.forward.prepare, *given, program, want_statistics)
        run = _remember(_forward_runs, key, _on_device(x, prepare))
    return run(x, residual, pre_bias, weight, bias)


def backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """Gradients of (x, residual, pre_bias, weight, bias), those that are wanted."""
    if not takes_kernels(given.h):
        return cpu.backward(given, program, has_residual, wanted)
    dy, dh, h, pre_bias, weight, bias, mu, rstd = given
    key = (
        program,
        has_residual,
        wanted,
        _facts(dy),
        None if dh is None else _facts(dh),
        _facts(h),
        None if pre_bias is None else _facts(pre_bias),
        None if weight is None else _facts(weight),
        None if bias is None else _facts(bias),
        None if mu is None else _facts(mu),
        _facts(rstd),
    )
    run = _backward_runs.get(key)
    if run is None:
        launch = _launch()
        taken = Given(*map(launch.with_row_stride, given[:3]), *map(launch.contiguous, given[3:]))
        if any(new is not old for new, old in zip(taken, given, strict=True)):
            return backward(taken, program, has_residual, wanted)
        prepare = functools.partial(launch.backward.prepare, given, program, has_residual, wanted)
        run = _remember(_backward_runs, key, _on_device(given.h, prepare))
    return run(given)


def takes_kernels(x: Tensor) -> bool:
    """Whether this tensor is for the kernels."""
    return x.is_cuda or (INTERPRETING and x.device.type == "cpu")


def _facts(t: Tensor) -> tuple[Any, ...]:
    """Everything about a tensor that a plan, a compiled kernel or a check depends on."""
    contiguous = t.is_contiguous() or t.stride()
    return t.shape, contiguous, t.dtype, t.get_device(), t.is_cpu, t.data_ptr() & 15


def _remember(runs: dict[Any, Any], key: Any, run: Any) -> Any:
    if len(runs) >= MOST_RUNS:
        runs.clear()
    runs[key] = run
    return run


@functools.cache
def _launch() -> Any:
    """The launch floor, imported with Triton when a kernel is first wanted."""
    from .. import launch

    launch.on_change(_forward_runs.clear)
    launch.on_change(_backward_runs.clear)
    return launch


def _on_device(t: Tensor, prepare: Callable[[], Any]) -> Any:
    """What ``prepare`` makes on the device of ``t``, there to be run too, whichever device is current by then."""
    device = t.get_device()
    with torch.cuda.device_of(t):
        run = prepare()
    if device < 0 or torch.cuda.device_count() == 1:
        return run

    def run_there(*tensors: Tensor | None) -> Any:
        if torch._C._cuda_getDevice() == device:
            return run(*tensors)
        with torch.cuda.device(device):
            return run(*tensors)

    return run_there
