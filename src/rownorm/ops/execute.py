"""Run the row program now, on real tensors: kernels for a GPU, PyTorch for a CPU.

A call is recognised by everything that its checks, its plan and its compiled kernels depend on. The first
call of its kind does all of that work and keeps the function that remains; the next finds it with one look-up.
"""

from __future__ import annotations

import functools
import os
import threading
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
Run = Callable[[tuple[Any, ...], list[Any]], Any]  # of tensors and their addresses

# What is left to do, by what a call is recognised by.
_forward_runs: dict[Any, Run] = {}
_backward_runs: dict[Any, Run] = {}
_when_launching: list[Callable[[Any], None]] = []
_floor: Any = None  # rownorm.launch, once a kernel was wanted
_opening = threading.RLock()


def forward(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    options: tuple[Any, ...],
    want_statistics: bool,
) -> Statistics:
    """(y, h, mu, rstd): ``h`` with a residual; the statistics only where they are wanted."""
    given = (x, residual, pre_bias, weight, bias)
    run, addresses = find_forward(given, options, want_statistics)
    return run(given, addresses)


def find_forward(
    given: tuple[Any, ...], options: tuple[Any, ...], want_statistics: bool
) -> tuple[Run, list[Any]]:
    """What is left of ``forward`` for tensors like these, and where they lie.

    given: x, residual, pre_bias, weight, bias. options: a Program, or its fields in a plain tuple; as a key they are
    equal.
    """
    x, residual, pre_bias, weight, bias = given
    try:
        addresses: list[Any] = [
            x.data_ptr(),
            None if residual is None else residual.data_ptr(),
            None if pre_bias is None else pre_bias.data_ptr(),
            None if weight is None else weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
        ]
        key = (
            options,
            want_statistics,
            # _facts(x)
            x.shape,
            x.is_contiguous() or x.stride(),
            x.dtype,
            x.get_device(),
            x.is_cpu,
            addresses[0] & 15,
            None if residual is None else _facts(residual, addresses[1]),
            None if pre_bias is None else _facts(pre_bias, addresses[2]),
            None if weight is None else _facts(weight, addresses[3]),
            None if bias is None else _facts(bias, addresses[4]),
        )
        run = _forward_runs.get(key)
    except (RuntimeError, TypeError):
        # A tensor without storage, an option that cannot be hashed: the checks have words for these.
        check(*given, Program(*options))  # type: ignore[call-arg]
        raise
    if run is None:
        program = Program(*options)
        check(*given, program)  # type: ignore[call-arg]
        run = _remember(_forward_runs, key, _prepare_forward(given, program, want_statistics))
    return run, addresses


def _prepare_forward(given: tuple[Any, ...], program: Program, want_statistics: bool) -> Run:
    x = given[0]
    if not takes_kernels(x):
        return cpu.prepare(*given, program, want_statistics)  # type: ignore[call-arg]
    if not _are_readable(given, n_rows=2):
        return lambda given, _: forward(*_readable(given, 2), program, want_statistics)  # type: ignore[call-arg]
    prepare = _launch().forward.prepare
    return _on_device(x, functools.partial(prepare, *given, program, want_statistics))


def backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """Gradients of (x, residual, pre_bias, weight, bias), those that are wanted."""
    run = find_backward(given, program, has_residual, wanted)
    return Gradients._make(run(given, [None if t is None else t.data_ptr() for t in given]))


def find_backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Run:
    """What is left of ``backward`` for tensors like these."""
    if not takes_kernels(given.h):
        return lambda given, _: cpu.backward(Given(*given), program, has_residual, wanted)
    facts = [None if t is None else _facts(t, t.data_ptr()) for t in given]
    key = (program, has_residual, wanted, *facts)
    run = _backward_runs.get(key)
    if run is None:
        prepared = _prepare_backward(given, program, has_residual, wanted)
        run = _remember(_backward_runs, key, prepared)
    return run


def _prepare_backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Run:
    if not _are_readable(given, n_rows=3):
        return lambda given, _: backward(Given(*_readable(given, 3)), program, has_residual, wanted)
    prepare = _launch().backward.prepare
    return _on_device(given.h, functools.partial(prepare, given, program, has_residual, wanted))


def takes_kernels(x: Tensor) -> bool:
    """Whether this tensor is for the kernels."""
    return x.is_cuda or (INTERPRETING and x.device.type == "cpu")


def _facts(t: Tensor, address: int) -> tuple[Any, ...]:
    """Everything about a tensor that a plan, a compiled kernel or a check depends on."""
    contiguous = t.is_contiguous() or t.stride()
    return t.shape, contiguous, t.dtype, t.get_device(), t.is_cpu, address & 15


def _are_readable(given: tuple[Any, ...], n_rows: int) -> bool:
    """Whether the kernels can read these tensors where they lie, the first ``n_rows`` of them as rows."""
    row_stride = _launch().rows.row_stride
    rows, parameters = given[:n_rows], given[n_rows:]
    return all(t is None or row_stride(t) is not None for t in rows) and all(
        t is None or t.is_contiguous() for t in parameters
    )


def _readable(given: tuple[Any, ...], n_rows: int) -> tuple[Any, ...]:
    """The same tensors, copied where that is needed."""
    launch = _launch()
    rows, parameters = given[:n_rows], given[n_rows:]
    return (*map(launch.with_row_stride, rows), *map(launch.contiguous, parameters))


def _remember(runs: dict[Any, Any], key: Any, run: Any) -> Any:
    if len(runs) >= MOST_RUNS:
        runs.clear()
    runs[key] = run
    return run


def _launch() -> Any:
    """The launch floor, imported with Triton when a kernel is first wanted: once, whoever else wants one meanwhile."""
    global _floor
    if _floor is None:
        with _opening:
            if _floor is None:
                from .. import launch

                launch.on_change(_forget)
                for tell in _when_launching:
                    tell(launch)
                _floor = launch
    return _floor


def when_launching(tell: Callable[[Any], None]) -> None:
    """Call ``tell(launch)`` once, before the first kernel is prepared."""
    _when_launching.append(tell)


def _forget() -> None:
    _forward_runs.clear()
    _backward_runs.clear()
    _launch().native.forget()


def _on_device(t: Tensor, prepare: Callable[[], Any]) -> Any:
    """What ``prepare`` makes on the device of ``t``, there to be run too, whichever device is current by then."""
    device = t.get_device()
    with torch.cuda.device_of(t):
        run = prepare()
    if device < 0 or torch.cuda.device_count() == 1:
        return run

    def run_there(given: tuple[Any, ...], addresses: list[Any]) -> Any:
        if torch._C._cuda_getDevice() == device:
            return run(given, addresses)
        with torch.cuda.device(device):
            return run(given, addresses)

    native = _launch().native
    return native.guarded(run, run_there) if native.is_run(run) else run_there
