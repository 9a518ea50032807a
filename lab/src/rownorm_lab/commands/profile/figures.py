"""Figures from what each tool has written, each with its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

import msgspec

from ...data.case import Case
from ...data.profiles import Figure, ScriptNorm, Unit, share_of_norms
from ...data.records import Environment
from ...data.studies import KernelTime
from ...profilers import chrome, ncu, ncu_csv, rocprof
from ...profilers.chrome import Event
from ...profilers.proton import ProtonKernel
from ...profilers.request import DIFFERENCE, ProfileRequest
from ...providers.data import output_names

BANDWIDTH, PEAK_SHARE = "achieved bandwidth", "share of peak bandwidth"
OCCUPANCY, SECTORS = "achieved occupancy", "sectors per load request"
OVERHEAD, IDLE = "launch overhead: host time of a {}", "GPU idle"
TIME, NORM_SHARE = "kernel time of a {}", "kernel time share of norms"


def of_trace(
    request: ProfileRequest,
    subject: str,
    timed: Sequence[Event],
    kernels: Sequence[KernelTime],
    here: Environment,
) -> Iterator[Figure]:
    """From a Chrome trace. kernels: of one call or step."""
    source = chrome.FILES[subject]
    device = chrome.device_times(timed)
    if device is None:
        return
    seconds = sum(one.seconds for one in kernels)
    yield figure(TIME.format(request.unit), subject, seconds, "s", f"{source}: sum of kernels")
    launched = chrome.launches(timed)
    if launched.number:
        name = f"kernels that are launched in a {request.unit}"
        count = sum(one.calls for one in kernels)
        yield figure(name, subject, count, "number", f"{source}: kernels and copies")
        name = "host time of one launch"
        calls = f"{source}: calls of the driver or the runtime that launch"
        yield figure(name, subject, launched.seconds / launched.number, "s", calls)
    idle = 1 - device.busy / device.span if device.span else 0.0
    spans = f"{source}: gaps between kernels, with the profiler's own overhead"
    yield figure(IDLE, subject, idle, "share", spans)
    if request.case and seconds:
        rate = request.case.compulsory_bytes / seconds
        yield figure(
            BANDWIDTH, subject, rate, "B/s", f"{source}: compulsory bytes over kernel time"
        )
        yield from _peak_share(rate, subject, here)


def _peak_share(rate: float, subject: str, here: Environment) -> Iterator[Figure]:
    if peak := here.peak_bytes_per_second:
        yield figure(PEAK_SHARE, subject, rate / peak, "share", f"peak: {here.peak_source}")


def of_host(
    request: ProfileRequest, subject: str, times: dict[str, float], on_gpu: bool
) -> Iterator[Figure]:
    """From the clock, without a profiler."""
    clock = "host clock, without a profiler"
    if "host" in times and on_gpu:
        name = OVERHEAD.format(request.unit)
        yield figure(name, subject, times["host"], "s", f"{clock}, without waiting for the GPU")
    whole = times.get("whole", None if on_gpu else times.get("host"))
    if whole is not None:
        yield figure(f"time of a {request.unit}", subject, whole, "s", clock)
    if DIFFERENCE in times and request.case:
        source = f"{output_names(request.case)[0]} of one call"
        yield figure("largest difference from torch", subject, times[DIFFERENCE], "number", source)


def of_norms(
    request: ProfileRequest, subject: str, kernels: Sequence[KernelTime], on_gpu: bool
) -> Iterator[Figure]:
    """The share of norms in a step. A script in which none was found may hide them."""
    share = share_of_norms(kernels)
    if share is not None and not request.case and (share or not request.script):
        what = "kernels" if on_gpu else "operators, without those that they call"
        yield figure(NORM_SHARE, subject, share, "share", f"{chrome.FILES[subject]}: {what}")


def of_proton(
    request: ProfileRequest, subject: str, kernels: Sequence[ProtonKernel], repeats: int
) -> Iterator[Figure]:
    """The same kernel time from another profiler."""
    name = f"{TIME.format(request.unit)}, Proton"
    seconds = sum(one.seconds for one in kernels) / repeats
    yield figure(name, subject, seconds, "s", f"proton-{subject}.hatchet: time (ns)")


def of_ncu(records: Sequence[ncu_csv.KernelRecord], subject_of: dict[str, str]) -> Iterator[Figure]:
    """The counters of each kernel; means over its launches. subject_of: by kernel."""
    for kernel in dict.fromkeys(one.kernel for one in records):
        some = [one for one in records if one.kernel == kernel]
        subject = f"{subject_of[kernel]}: {kernel}"
        yield from _counted("time", subject, "s", [one.seconds for one in some], ncu_csv.TIME)
        yield from _counted(
            "memory traffic", subject, "B/s", list(map(_rate, some)), "dram__bytes over the time"
        )
        for name, metric in (
            (PEAK_SHARE, ncu.BANDWIDTH),
            (OCCUPANCY, ncu.OCCUPANCY),
            ("theoretical occupancy", ncu.THEORETICAL),
        ):
            shares = [one.metrics[metric] / 100 for one in some if metric in one.metrics]
            yield from _counted(name, subject, "share", shares, metric)
        for name, kind in ((SECTORS, "ld"), ("sectors per store request", "st")):
            ratios = [one.sectors_per_request(kind) for one in some]
            counters = f"{ncu_csv.SECTORS.format(kind)} over requests"
            yield from _counted(name, subject, "number", ratios, counters)
        registers = [one.metrics.get(ncu.REGISTERS) for one in some]
        yield from _counted("registers of a thread", subject, "number", registers, ncu.REGISTERS)


def _counted(
    name: str, subject: str, unit: Unit, values: Sequence[float | None], counter: str
) -> Iterator[Figure]:
    known = [value for value in values if value is not None]
    if known:
        yield figure(name, subject, mean(known), unit, f"{ncu.FILE}: {counter}")


def _rate(one: ncu_csv.KernelRecord) -> float | None:
    moved = [one.metrics.get(name) for name in (ncu.READ, ncu.WRITTEN)]
    if one.seconds is None or not one.seconds or None in moved:
        return None
    return sum(value for value in moved if value is not None) / one.seconds


def of_rocprof(
    stats: Sequence[rocprof.KernelStats], counted: Sequence[rocprof.Launch], here: Environment
) -> Iterator[Figure]:
    """Times and counters of each of rownorm's kernels; means over its launches."""
    for one in stats:
        subject, seconds = f"rownorm: {one.kernel}", one.seconds / max(1, one.calls)
        yield figure("time", subject, seconds, "s", "kernel_stats.csv: TotalDurationNs over Calls")
        moved = rocprof.traffic(counted, one.kernel)
        if moved is not None and seconds:
            source = "FETCH_SIZE and WRITE_SIZE over the time"
            yield figure("memory traffic", subject, moved / seconds, "B/s", source)
            yield from _peak_share(moved / seconds, subject, here)
        occupancy = rocprof.mean(counted, one.kernel, rocprof.OCCUPANCY)
        if occupancy is not None:
            yield figure(OCCUPANCY, subject, occupancy / 100, "share", rocprof.OCCUPANCY)


def predicted(case: Case) -> Iterator[Figure]:
    """Occupancy and sectors from the compiled code of this GPU, where no counters could be read."""
    from ...compiled.analysis import analyze
    from ...compiled.compile import compile_case, target_of

    directions = ("forward", "backward") if case.direction == "both" else (case.direction,)
    for direction in directions:
        one = msgspec.structs.replace(case, direction=direction)
        for kernel in analyze(compile_case(one, target_of("this"))).kernels:
            subject, source = f"rownorm: {kernel.kernel}", "predicted by rownorm analyze"
            yield figure("theoretical occupancy", subject, kernel.occupancy, "share", source)
            name = "sectors per request"
            yield figure(name, subject, kernel.sectors_per_request, "number", source)


def speed_up(request: ProfileRequest, figures: Sequence[Figure]) -> Iterator[Figure]:
    """rownorm beside torch: in kernel time, and in the time of the clock."""
    for name in (TIME.format(request.unit), f"time of a {request.unit}"):
        ours, others = (value_of(figures, name, subject) for subject in ("rownorm", "torch"))
        if ours and others:
            source = f"{name}, of torch over that of rownorm"
            yield figure("speed beside torch", "rownorm", others / ours, "number", source)


def of_saving(norms: Sequence[ScriptNorm], kernels: Sequence[KernelTime]) -> Iterator[Figure]:
    """The share of the kernel time of a step that rownorm would save, over the norms that were estimated."""
    known = [(one.seconds, one.rownorm_seconds) for one in norms if one.rownorm_seconds is not None]
    total = sum(one.seconds for one in kernels)
    if known and total:
        saved = sum(before - after for before, after in known) / total
        source = "the trace, and the times with rownorm in the table of norms"
        yield figure("share that rownorm would save", "script", saved, "share", source)


def figure(name: str, subject: str, value: float, unit: Unit, source: str) -> Figure:
    """A figure."""
    return Figure(name=name, subject=subject, value=value, unit=unit, source=source)


def value_of(figures: Sequence[Figure], name: str, subject: str) -> float | None:
    """The value of the first figure of that name; None without one."""
    return next((one.value for one in figures if (one.name, one.subject) == (name, subject)), None)
