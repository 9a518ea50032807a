"""A profile from CSVs that rocprofv3 has written of any program, without a request of ``rownorm profile``."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from ...data import texts
from ...data.profiles import Figure, Profile, ToolResult
from ...data.records import Environment
from ...data.studies import KernelTime
from ...profilers import rocprof
from ...profilers.rocprof import PROGRAM, Files

SUBJECT = "program"
IDLE = 0.3  # of the time between the first kernel and the last: then the host is the bottleneck


def profile_of_files(folder: Path) -> Profile:
    """The kernels, times, launches and counters of all CSVs in a folder; ValueError if none is rocprofv3's."""
    files = rocprof.read_files(folder)
    if not files.read:
        raise ValueError(
            f"{folder} holds neither a request of rownorm profile nor CSVs of rocprofv3 "
            "(*_kernel_trace.csv, *_kernel_stats.csv, *_counter_collection.csv)"
        )
    kernels = sorted(files.stats, key=lambda one: -one.seconds)
    names = [str(file.relative_to(folder)) for file in files.read]
    newest = max(file.stat().st_mtime for file in files.read)
    left_out = "; ".join(f"{file.name}: {why}" for file, why in files.problems)
    figures = [*_whole(files), *_of_kernels(files)]
    return Profile(
        title=f"a program under rocprofv3, from {folder.name or folder}",
        date=datetime.datetime.fromtimestamp(newest, datetime.UTC).date().isoformat(),
        environment=Environment(device=files.device or "AMD GPU", kind="hip"),
        tools=[ToolResult(PROGRAM, "failed" if left_out else "ok", left_out, names)],
        figures=figures,
        kernels={
            SUBJECT: [KernelTime(one.kernel, one.calls, one.seconds, False) for one in kernels]
        }
        if kernels
        else {},
        norms=[],
        bottleneck=_bottleneck(files),
        advice=list(_advice(files)),
    )


def _whole(files: Files) -> Iterator[Figure]:
    """The figures of the whole run."""

    def figure(name: str, value: float, unit: str, source: str) -> Figure:
        return Figure(name=name, subject=SUBJECT, value=value, unit=unit, source=source)  # type: ignore[arg-type]

    if files.stats:
        total, calls = (
            sum(getattr(one, name) for one in files.stats) for name in ("seconds", "calls")
        )
        source = "kernel_trace" if files.span else "kernel_stats"
        yield figure("time in kernels", total, "s", source)
        yield figure("kernels launched", calls, "number", source)
    if files.span and files.busy:
        source = "kernel_trace: start of the first kernel to end of the last"
        yield figure("from the first kernel to the last", files.span, "s", source)
        source = "kernel_trace: time with at least one kernel, of that"
        at_once = sum(one.seconds for one in files.stats) / files.busy
        yield figure(
            "kernels at once, on average", at_once, "number", "time in kernels over busy time"
        )
        yield figure("utilisation of the GPU", files.busy / files.span, "share", source)


def _of_kernels(files: Files) -> Iterator[Figure]:
    """Launches, mean time, counters and memory traffic of each kernel."""
    seconds = {one.kernel: one.seconds / one.calls for one in files.stats if one.calls}
    calls = {one.kernel: one.calls for one in files.stats}
    counted = dict.fromkeys(one.kernel for one in files.counted)
    for kernel in dict.fromkeys([*seconds, *counted]):

        def figure(name: str, value: float, unit: str, source: str, of: str = kernel) -> Figure:
            subject = f"{SUBJECT}: {of}"
            return Figure(name=name, subject=subject, value=value, unit=unit, source=source)  # type: ignore[arg-type]

        if kernel in seconds:
            yield figure("launches", calls[kernel], "number", "kernel_trace or kernel_stats")
            yield figure("time of a launch", seconds[kernel], "s", "the mean of all launches")
        counters = dict.fromkeys(
            name for one in files.counted if one.kernel == kernel for name in one.counters
        )
        means = {name: rocprof.mean(files.counted, kernel, name) or 0.0 for name in counters}
        for name, value in means.items():
            if name == rocprof.OCCUPANCY:
                yield figure("achieved occupancy", value / 100, "share", f"counter {name}")
            else:
                yield figure(name, value, "number", "counter, the mean of all launches")
        if kernel in seconds and set(rocprof.TRAFFIC) <= means.keys():
            moved = sum(means[name] for name in rocprof.TRAFFIC) * rocprof.KIBIBYTE
            source = f"counters {' and '.join(rocprof.TRAFFIC)} over the time of a launch"
            yield figure("memory traffic", moved / seconds[kernel], "B/s", source)


def _bottleneck(files: Files) -> str:
    if not files.stats:
        return "unknown, because no CSV has times"
    if files.span and files.busy < (1 - IDLE) * files.span:
        idle = texts.percent(1 - files.busy / files.span)
        return f"the host: no kernel runs in {idle} of the time between the first and the last"
    first = max(files.stats, key=lambda one: one.seconds)
    share = first.seconds / sum(one.seconds for one in files.stats)
    return f"the kernel {first.kernel}, {texts.percent(share)} of the time in kernels"


def _advice(files: Files) -> Iterator[str]:
    if files.span and files.busy < (1 - IDLE) * files.span:
        yield "launch fewer, larger kernels, or record them in a graph: the GPU waits for the host"
    if not files.span:
        yield "rocprofv3 --kernel-trace --output-format csv adds the times of launches and the utilisation"
    if not any(set(rocprof.TRAFFIC) <= one.counters.keys() for one in files.counted):
        counters = " ".join(rocprof.TRAFFIC)
        yield f"rocprofv3 --pmc {counters} --output-format csv adds memory traffic"
