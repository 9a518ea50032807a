"""Chrome traces of torch.profiler: recorded with rownorm and with torch. They open in ui.perfetto.dev."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.profiles import ToolResult
from .process import read_json, recorded
from .request import ProfileRequest

FILES = {
    "rownorm": "triton_profile.json",
    "torch": "pytorch_profile.json",
    "script": "script_profile.json",
}
MICROSECOND = 1e-6
RESTART = "rownorm profile: what is before this is left out"
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
TAIL = 1 << 16  # bytes at the end of a trace that have its name

Event = dict[str, Any]


class DeviceTimes(NamedTuple):
    """Seconds. busy: at least one kernel runs; span: from the start of the first to the end of the last."""

    busy: float
    span: float


class Launches(NamedTuple):
    """number: calls of the driver or the runtime that launch a kernel. seconds: of the host, for all of them."""

    number: int
    seconds: float


def collect(request: ProfileRequest, folder: Path) -> ToolResult:
    """Record the traces in a process of its own."""
    return recorded("chrome", request, folder, FILES)


def rename(file: Path, name: str) -> None:
    """Give a trace another ``traceName`` than the path it was written to. Only its end is read: traces are large."""
    with file.open("r+b") as trace:
        start = max(0, trace.seek(0, os.SEEK_END) - TAIL)
        trace.seek(start)
        tail = trace.read().replace(os.fsencode(file), os.fsencode(name))
        trace.seek(start)
        trace.write(tail)
        trace.truncate()


def parse(file: Path) -> list[Event]:
    """The events of a trace that have a duration. ValueError, with the reason, if it is no trace or is cut off."""
    document = read_json(file)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError("it is no Chrome trace: it has no list called traceEvents")
    timed = [event for event in events if event.get("ph") == "X"]
    if not timed:
        raise ValueError("it has no event with a duration: nothing was recorded")
    incomplete = next(
        (one for one in timed if not {"name", "ts", "dur", "tid"} <= one.keys()), None
    )
    if incomplete is not None:
        raise ValueError(f"it has an event without name, ts, dur or tid: {incomplete}")
    return timed


def after_restart(timed: Sequence[Event]) -> list[Event]:
    """The events after the last mark in the trace: those of the host, and the kernels that they launched."""
    marks = [event["ts"] for event in timed if event["name"] == RESTART]
    if not marks:
        return list(timed)
    host = [one for one in timed if one.get("cat") not in DEVICE]
    before = {_correlation(one) for one in host if one["ts"] < marks[-1]} - {None}
    return [
        one
        for one in timed
        if one["ts"] >= marks[-1]
        and not (one.get("cat") in DEVICE and _correlation(one) in before)
        and one["name"] != RESTART
    ]


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def device_times(timed: Sequence[Event]) -> DeviceTimes | None:
    """How long the GPU was busy; None without kernels."""
    kernels = [(one["ts"], one["ts"] + one["dur"]) for one in timed if one.get("cat") == "kernel"]
    if not kernels:
        return None
    span = max(end for _, end in kernels) - min(start for start, _ in kernels)
    return DeviceTimes(covered(kernels) * MICROSECOND, span * MICROSECOND)


def covered(times: Iterable[tuple[float, float]]) -> float:
    """How long at least one of the times runs. times: (start, end)."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(times):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def is_host_call(event: Event) -> bool:
    """Whether it is a call of the driver or the runtime, of CUDA or HIP."""
    return str(event.get("cat")).endswith(("_runtime", "_driver"))


def launches(timed: Sequence[Event]) -> Launches:
    """The calls that launch kernels, of CUDA and HIP."""
    found = [
        event["dur"]
        for event in timed
        if is_host_call(event)
        and ("LaunchKernel" in event["name"] or "LaunchCooperativeKernel" in event["name"])
    ]
    return Launches(len(found), sum(found) * MICROSECOND)
