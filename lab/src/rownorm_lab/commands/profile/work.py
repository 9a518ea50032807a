"""The work that is profiled: ``python -m rownorm_lab.commands.profile.work FOLDER TOOL`` does what is asked for in
FOLDER/request.json.

TOOL is chrome or proton, which record inside this process, or counters for ncu and rocprofv3, which run around it.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is loaded: only warnings

import msgspec
import torch
from torch import Tensor

from ...data.case import Case
from ...data.files import write_whole
from ...measure import timing
from ...measure.machine import Machine, machine_of
from ...models.workload import Workload, run_under
from ...profilers.request import (
    DIFFERENCE,
    HOST,
    ModelStep,
    ProfileRequest,
    Times,
    read_request,
    repeats,
)
from ...providers import all_providers, as_tuple, data
from .script import run_script
from .sessions import Session, session_of, synchronize

ROUNDS = 5  # of host times


def main() -> None:
    """Do the work of a folder."""
    folder, tool = Path(sys.argv[1]), sys.argv[2]
    request = read_request(folder)
    if request.script:
        sys.exit(run_script(request.script, tool, folder))
    if tool == "chrome":
        # First: launches stay slower in a process that was profiled.
        times: Times = {subject: host_times(request, subject) for subject in request.subjects}
        write_whole(folder / HOST, msgspec.json.encode(times))
    outputs = [record(request, subject, tool, folder) for subject in request.subjects]
    if tool == "chrome" and request.case:
        ours, others = (one.double() for one in outputs if one is not None)
        times["rownorm"][DIFFERENCE] = float((ours - others).abs().max())
        write_whole(folder / HOST, msgspec.json.encode(times))


def host_times(request: ProfileRequest, subject: str) -> dict[str, float]:
    """Seconds of one call or step until the host is done with it (host); of a step, also until the GPU is (whole)."""
    if request.case:
        return {"host": case_seconds(request.case, subject)}
    assert request.model is not None
    workload = workload_of(request.model, subject)
    workload.step()
    turns = [timing.step_seconds(workload.step, workload.device) for _ in range(ROUNDS)]
    whole, host = (statistics.median(values) for values in zip(*turns, strict=True))
    return {"host": host, "whole": whole}


def case_seconds(case: Case, subject: str) -> float:
    """Host time of one call of a norm."""
    machine = machine_of(None, [])
    with machine.stream():
        call = calls_of(case, subject, machine)[0]
        call()
        peak = machine.environment.peak_bytes_per_second or (2e12 if machine.on_gpu else 4e9)
        n_calls = timing.host_calls(case.compulsory_bytes / peak)
        return statistics.median(timing.host_seconds(call, n_calls) for _ in range(ROUNDS))


def record(request: ProfileRequest, subject: str, tool: str, folder: Path) -> Tensor | None:
    """Run a subject while a tool records. Returns the first output of a norm, y or dx."""
    session, n = session_of(tool, folder, subject), repeats(request, tool)
    # The first call under a profiler is slower; counters do not depend on it.
    restart = None if tool == "counters" else session.restart
    if request.case:
        return record_case(request.case, subject, session, n, restart)
    assert request.model is not None
    run_under(session, workload_of(request.model, subject), n, restart)
    return None


def record_case(
    case: Case,
    subject: str,
    session: Session,
    n_calls: int,
    restart: Callable[[], None] | None,
) -> Tensor:
    """Call a norm. Inputs exceed the cache of the device, as in the lab's timing; so no call finds its own in it.

    restart: if given, it is called after one more call.
    """
    machine = machine_of(None, [])
    with machine.stream():
        calls = calls_of(case, subject, machine)
        outputs: deque[Any] = deque((call() for call in calls[:2]), maxlen=len(calls))
        synchronize()
        with session:
            if restart is not None:
                outputs.append(calls[0]())
                restart()
            for number in range(n_calls):
                outputs.append(calls[number % len(calls)]())
        return as_tuple(calls[0]())[0].detach()


def calls_of(case: Case, subject: str, machine: Machine) -> list[Callable[[], Any]]:
    """Calls of a norm, each with its own inputs."""
    sets = data.rotation(case, machine.round_size(case).sets, machine.device)
    return [all_providers()[subject].prepare(case, one) for one in sets]


def workload_of(model: ModelStep, subject: str) -> Workload:
    """A model that trains: rownorm's stage, or the stage of PyTorch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stage: Any = "rownorm" if subject == "rownorm" else model.stage
    return Workload(model.task, model.size, stage, "eager", device)


if __name__ == "__main__":
    main()
