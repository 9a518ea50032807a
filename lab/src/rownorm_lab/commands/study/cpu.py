"""What a norm of tensors on a CPU takes, beside what a user of PyTorch would write, with one thread and with two.

The tensors are those of the call before, so small ones are in the cache, as between the layers of a model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import rownorm

from ...data.case import Case, Direction, Dtype
from ...data.judged import CallRecord
from ...data.shapes import Shape
from ...data.suites import grid
from ...measure.timing import host_seconds, in_turns
from ...providers import by_autograd
from ...providers.data import Tensors, rotation

OPERATIONS = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm")
DIRECTIONS: dict[Direction, str] = {"forward": "forward", "both": "forward and backward"}
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16")
SHAPES: tuple[Shape, ...] = ((1, 4096), (64, 1024), (512, 4096), (4096, 1024))
THREADS = (1, 2)
ROUNDS = 41
ROUND = 2e-3  # seconds; short, so that both sides of a ratio find the same machine
BAR = 1.0


class Setting(NamedTuple):
    """One record of a run."""

    case: Case
    threads: int

    @property
    def name(self) -> str:
        """Everything except operation and direction."""
        case, plural = self.case, "" if self.threads == 1 else "s"
        return f"{case.rows} x {case.cols} {case.dtype}, {self.threads} thread{plural}"


def all_settings() -> list[Setting]:
    """Every record of a run."""
    cases = grid(OPERATIONS, tuple(DIRECTIONS), DTYPES, SHAPES)
    return [Setting(case, threads) for case in cases for threads in THREADS]


def conditions() -> str:
    """How often each call was timed, and of what torch's time is."""
    return (
        f"{ROUNDS} rounds of about {ROUND * 1e3:g} ms; beside F.layer_norm and F.rms_norm, for the residual add "
        "of x + residual; backward is of both outputs, for the gradients of all inputs and parameters"
    )


def measure(setting: Setting) -> CallRecord:
    """Time rounds of calls, torch's and ours in turns."""
    case = setting.case
    (tensors,) = rotation(case, 1, "cpu")
    calls = [torchs_call(case, tensors), our_call(case, tensors)]
    seconds: list[list[float]] = [[], []]
    with _threads(setting.threads):
        once = max(host_seconds(call, 3) for _ in range(3) for call in calls)
        n_calls = max(1, round(ROUND / once))
        for _, which in in_turns((0, 1), ROUNDS):
            seconds[which].append(host_seconds(calls[which], n_calls))
    return CallRecord(
        norm=case.operation,
        setting=setting.name,
        direction=DIRECTIONS[case.direction],
        torch=seconds[0],
        rownorm=seconds[1],
        bar=BAR,
    )


def our_call(case: Case, t: Tensors) -> Callable[[], Any]:
    """rownorm's call."""
    x, residual, _, weight, bias, *_ = t
    function, eps = getattr(rownorm, case.operation), case.eps
    if residual is None:
        return by_autograd(case, t, lambda: function(x, weight, bias, eps=eps))
    return by_autograd(case, t, lambda: function(x, residual, weight, bias, eps=eps))


def torchs_call(case: Case, t: Tensors) -> Callable[[], Any]:
    """The same in PyTorch, with nothing beside the operators that it needs."""
    x, residual, _, weight, bias, *_ = t
    shape, eps = x.shape[-1:], case.eps

    def norm(h: Tensor) -> Tensor:
        if case.centers:
            return F.layer_norm(h, shape, weight, bias, eps)
        return F.rms_norm(h, shape, weight, eps)

    def norm_of_sum(residual: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        return norm(h), h

    if residual is None:
        return by_autograd(case, t, lambda: norm(x))
    return by_autograd(case, t, lambda: norm_of_sum(residual))


@contextlib.contextmanager
def _threads(n_threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
