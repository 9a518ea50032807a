"""The work that is profiled: ``python -m rownorm.lab.profile.work FOLDER TOOL`` does what FOLDER/request.json asks for.

TOOL is chrome or proton, which record inside this process, or counters for ncu and rocprofv3, which run around it.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..cases.case import Case
from ..results.files import write_whole
from .request import ModelStep, Request, read_request

if TYPE_CHECKING:
    from torch import Tensor

CALLS = 10  # of a norm, in a trace
STEPS = 2  # of a model, in a trace
HOST = "host.json"
DIFFERENCE = "difference"  # of rownorm's y, or dx, from torch's: the largest
ROUNDS = 5  # of host times

Times = dict[str, dict[str, float]]  # subject: name: seconds of one call or step, or a difference


def repeats(request: Request, tool: str) -> int:
    """How many calls or steps of each subject are recorded. Counters need one."""
    if tool == "counters":
        return 1
    return CALLS if request.case else STEPS


def main() -> None:
    """Do the work of a folder."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is loaded: only warnings
    folder, tool = Path(sys.argv[1]), sys.argv[2]
    request = read_request(folder)
    if request.script:
        from .script import run_script

        sys.exit(run_script(request.script, tool, folder))
    times: Times = {}
    outputs: list[Tensor] = []
    for subject in request.subjects:
        if request.case:
            times[subject] = run_case(request.case, subject, tool, folder, outputs)
        elif request.model:
            times[subject] = run_model(request.model, subject, tool, folder)
        if tool == "chrome":
            if len(outputs) == 2:
                ours, others = (one.double() for one in outputs)
                times["rownorm"][DIFFERENCE] = float((ours - others).abs().max())
            write_whole(folder / HOST, msgspec.json.encode(times))


def run_case(
    case: Case, subject: str, tool: str, folder: Path, results: list[Tensor]
) -> dict[str, float]:
    """Call a norm. Inputs exceed the cache of the device, as in the lab's timing; so no call finds its own in it.

    results: gets the first output of one call, y or dx, for the Chrome trace.
    """
    from ..cases import data
    from ..measure import timing
    from ..measure.machine import machine_of
    from ..providers import all_providers, as_tuple
    from .sessions import session_of, synchronize

    machine, provider = machine_of(None, []), all_providers()[subject]
    with machine.stream():
        sets = data.rotation(case, machine.round_size(case).sets, machine.device)
        calls = [provider.prepare(case, one) for one in sets]
        outputs: deque[Any] = deque((call() for call in calls[:2]), maxlen=len(calls))
        synchronize()
        with session_of(tool, folder, subject):
            for number in range(repeats(Request(case), tool)):
                outputs.append(calls[number % len(calls)]())
        if tool != "chrome":
            return {}
        results.append(as_tuple(calls[0]())[0].detach())
        peak = machine.environment.peak_bytes_per_second or (2e12 if machine.on_gpu else 4e9)
        n_calls = timing.host_calls(case.compulsory_bytes / peak)
        turns = (timing.host_seconds(calls[0], n_calls) for _ in range(ROUNDS))
        return {"host": statistics.median(turns)}


def run_model(model: ModelStep, subject: str, tool: str, folder: Path) -> dict[str, float]:
    """Train a model for a few steps: rownorm's stage, or the stage of PyTorch."""
    import torch

    from ..measure.timing import step_seconds
    from ..study.workload import Workload, run_under
    from .sessions import session_of

    device = "cuda" if torch.cuda.is_available() else "cpu"
    stage: Any = "rownorm" if subject == "rownorm" else model.stage
    workload = Workload(model.task, model.size, stage, "eager", device)
    run_under(session_of(tool, folder, subject), workload, repeats(Request(model=model), tool))
    if tool != "chrome":
        return {}
    turns = [step_seconds(workload.step, device) for _ in range(ROUNDS)]
    whole, host = (statistics.median(values) for values in zip(*turns, strict=True))
    return {"host": host, "whole": whole}


if __name__ == "__main__":
    main()
