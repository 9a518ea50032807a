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
from .figures import figure

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
    by_time = sorted(files.stats, key=lambda one: -one.seconds)
    kernels = [KernelTime(one.kernel, one.calls, one.seconds, False) for one in by_time]
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
        kernels={SUBJECT: kernels} if kernels else {},
        norms=[],
        bottleneck=_bottleneck(files),
        advice=list(_advice(files)),
    )


def _whole(files: Files) -> Iterator[Figure]:
    """The figures of the whole run."""
    if files.stats:
        total, calls = (
            sum(getattr(one, name) for one in files.stats) for name in ("seconds", "calls")
        )
        source = "kernel_trace" if files.span else "kernel_stats"
        yield figure("time in kernels", SUBJECT, total, "s", source)
        yield figure("kernels launched", SUBJECT, calls, "number", source)
    if files.span and files.busy:
        source = "kernel_trace: start of the first kernel to end of the last"
        yield figure("from the first kernel to the last", SUBJECT, files.span, "s", source)
        at_once = sum(one.seconds for one in files.stats) / files.busy
        source = "time in kernels over busy time"
        yield figure("kernels at once, on average", SUBJECT, at_once, "number", source)
        source = "kernel_trace: time with at least one kernel, of that"
        yield figure("utilisation of the GPU", SUBJECT, files.busy / files.span, "share", source)


def _of_kernels(files: Files) -> Iterator[Figure]:
    """Launches, mean time, counters and memory traffic of each kernel."""
    stats = {one.kernel: one for one in files.stats if one.calls}
    for kernel in dict.fromkeys([*stats, *(one.kernel for one in files.counted)]):
        subject, timed = f"{SUBJECT}: {kernel}", stats.get(kernel)
        if timed:
            source = "kernel_trace or kernel_stats"
            yield figure("launches", subject, timed.calls, "number", source)
            source = "the mean of all launches"
            yield figure("time of a launch", subject, timed.seconds / timed.calls, "s", source)
        names = dict.fromkeys(
            name for one in files.counted if one.kernel == kernel for name in one.counters
        )
        for name in names:
            value = rocprof.mean(files.counted, kernel, name) or 0.0
            if name == rocprof.OCCUPANCY:
                source = f"counter {name}"
                yield figure("achieved occupancy", subject, value / 100, "share", source)
            else:
                yield figure(name, subject, value, "number", "counter, the mean of all launches")
        moved = rocprof.traffic(files.counted, kernel)
        if timed and moved is not None:
            source = f"counters {' and '.join(rocprof.TRAFFIC)} over the time of a launch"
            rate = moved / (timed.seconds / timed.calls)
            yield figure("memory traffic", subject, rate, "B/s", source)


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
