"""Measure cases in a setting: torch's calls and rownorm's, timed in turns with the clock of the host."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import torch

from ...data.case import Case
from ...data.records import Method, Record, Status
from ...data.runs import timestamp
from ...device.environment import cpu_environment, environment
from ...measure.bench import OnStep, Step, in_one_line
from ...measure.timing import in_turns
from . import calls, cpu, settings, steps
from .workload import Times, Workload


def workload_of(case: Case) -> Workload:
    """The workload of a case in a setting."""
    if case.setting in settings.STEPS:
        return steps.SMALL
    if case.setting in settings.DIT_STEPS:
        return steps.DIT
    if case.setting == settings.BESIDE_PLAIN:
        return calls.FORMS
    return cpu.WORKLOAD if case.setting in settings.THREADS else calls.WORKLOAD


def bench_in_turns(
    cases: Sequence[Case],
    providers: Sequence[str],
    *,
    run: str,
    rounds: int | None = None,
    on_step: OnStep = lambda _: None,
) -> Iterator[Record]:
    """The records of every case, one for each provider; as ``measure.bench`` for cases without a setting.

    rounds: None is what the workload has. An error is of all providers of the case.
    """
    for number, case in enumerate(cases):
        workload = workload_of(case)
        on_step(Step(number * len(providers), len(cases) * len(providers), case, "", "timing"))
        status: Status = "ok"
        times: dict[str, list[Times]] = {name: [] for name in providers}
        why, repeats = "", 0
        try:
            repeats = _time(case, workload, rounds or workload.rounds, times)
        except Exception as error:
            status, why = "failed", in_one_line(error)
            times = {name: [] for name in providers}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # for the next case: a model is large
        here = cpu_environment() if workload.on_cpu else environment()
        for name, found in times.items():
            method = Method(
                timer="cpu_clock", rotation=1, calls=repeats, rounds=len(found), cold=False
            )
            yield Record(
                case=case,
                provider=name,
                status=status,
                why=why,
                method=method if found else None,
                seconds=[seconds for seconds, _ in found if seconds is not None],
                host_seconds=[host for _, host in found if host is not None],
                environment=here,
                run=run,
                time=timestamp(),
            )


def _time(case: Case, workload: Workload, rounds: int, times: dict[str, list[Times]]) -> int:
    """Fill in the times of every provider; returns the calls of a round."""
    device = "cuda" if torch.cuda.is_available() and not workload.on_cpu else "cpu"
    calls = workload.calls(case, list(times), device)
    with workload.context(case, device):
        repeats = workload.repeats(list(calls.values()))
        for turn, name in in_turns(list(calls), workload.warm_up + rounds):
            found = workload.round(calls[name], repeats, device)
            if turn >= workload.warm_up:
                times[name].append(found)
    return repeats
