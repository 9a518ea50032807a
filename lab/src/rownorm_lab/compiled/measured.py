"""Measured times beside an analysis: the lab's own timing, on this machine's GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from ..data.analyses import Analysis, Measured
from ..data.case import Case
from ..data.records import CEILING, OURS
from ..measure.machine import Machine, machine_of
from ..measure.timing import Rounds, rounds_of
from ..providers import all_providers, data
from ..providers.kernels import loop
from .launched import LOOP_WARPS

ROUNDS = 10


def measured(analyses: Sequence[Analysis]) -> list[Analysis]:
    """The analyses of one case with measured times. All kernels and the ceiling are timed in turns."""
    found = measured_case(analyses[0].case, [one.label for one in analyses])
    return [
        msgspec.structs.replace(one, measured=times)
        for one, times in zip(analyses, found, strict=True)
    ]


def measured_case(case: Case, labels: Sequence[str]) -> list[Measured]:
    """Time the kernels with these labels ("rownorm", "loop 256") and the ceiling, in turns."""
    machine = machine_of(None, [])
    names = [CEILING, *labels]
    with machine.stream():
        ceiling, *times = times_in_turns(case, machine, [_call_of(name) for name in names])
    machine.free()
    return [
        Measured(
            seconds=seconds,
            bytes_per_second=case.compulsory_bytes / seconds,
            ceiling=case.compulsory_bytes / ceiling,
            device=machine.environment.device,
        )
        for seconds in times
    ]


Prepare = Callable[[Case, data.Tensors], Callable[[], Any]]


def times_in_turns(case: Case, machine: Machine, prepared: Sequence[Prepare]) -> list[float]:
    """The median time of each call over rounds in which all take turns."""
    size = machine.round_size(case)
    sets = data.rotation(case, size.sets, machine.device)
    rounds = [
        rounds_of([prepare(case, t) for t in sets], size, machine.flush) for prepare in prepared
    ]
    return medians_in_turns(rounds)


def medians_in_turns(rounds: Sequence[Rounds]) -> list[float]:
    """The median time of each over as many rounds as all are given, in turns."""
    seconds: list[list[float]] = [[] for _ in rounds]
    for _ in range(ROUNDS):
        pending = [one.run() for one in rounds]
        torch.cuda.synchronize()
        for found, finish in zip(seconds, pending, strict=True):
            found.append(finish())
    return [statistics.median(found) for found in seconds]


def _call_of(name: str) -> Prepare:
    """How a case is run: the ceiling, rownorm, or the plain loop with a block size ("loop 256")."""
    if name.startswith("loop "):
        return lambda case, t: _loop(case, t, int(name.split()[1]))
    return all_providers()[OURS if name == "rownorm" else name].prepare


def _loop(case: Case, t: data.Tensors, block: int) -> Callable[[], Any]:
    kernel = loop.layer_norm_kernel if case.centers else loop.rms_norm_kernel

    def call() -> torch.Tensor:
        y = torch.empty_like(t.x)
        arguments = (t.x, t.weight, t.bias, y, t.x.stride(0), case.cols, case.eps)
        kernel[(case.rows,)](*arguments, BLOCK=block, num_warps=LOOP_WARPS)
        return y

    return call
