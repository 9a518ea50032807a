"""rocprofv3, AMD's profiler: how it is run, and the three kinds of CSV that it writes.

    *_kernel_stats.csv          one line for each kernel: calls and times
    *_kernel_trace.csv          one line for each launch, with its start and end in nanoseconds
    *_counter_collection.csv    one line for each counter of each launch

Headers differ between releases in case and in underscores, so they are compared without both.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from ..data.profiles import ToolResult
from .chrome import covered
from .process import Ran, failure, run, work_command
from .request import ProfileRequest

PROGRAM = "rocprofv3"
SUBFOLDER = "rocprof"
NANOSECOND = 1e-9
KIBIBYTE = 1024
TRAFFIC = ("FETCH_SIZE", "WRITE_SIZE")  # KiB between L2 and memory
OCCUPANCY = "OccupancyPercent"
RUNS = {  # output name: options. Counters that do not fit together need runs of their own.
    "trace": ("--kernel-trace", "--stats"),
    "traffic": ("--pmc", *TRAFFIC),
    "occupancy": ("--pmc", OCCUPANCY),
}
KINDS = {  # columns that tell the CSVs apart
    "counters": ("Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value"),
    "trace": ("Kernel_Name", "Start_Timestamp", "End_Timestamp"),
    "stats": ("Name", "Calls", "TotalDurationNs"),
    "agents": ("Agent_Type", "Product_Name", "Name"),
}
DENIED = ("permission denied", "unable to open /dev/kfd")


class KernelStats(NamedTuple):
    """All launches of one kernel."""

    kernel: str
    calls: int
    seconds: float


class Launch(NamedTuple):
    """One launch. seconds: None where a file has no times. counters: by name."""

    kernel: str
    seconds: float | None
    counters: dict[str, float]


class Files(NamedTuple):
    """What the CSVs of a folder say together. span and busy: seconds; 0 without a trace."""

    read: list[Path]
    problems: list[tuple[Path, str]]  # files that cannot be used, and why
    stats: list[KernelStats]
    counted: list[Launch]
    span: float  # from the start of the first kernel to the end of the last
    busy: float  # of it, with at least one kernel; on several GPUs their mean
    device: str  # "" if no file names it


def collect(request: ProfileRequest, folder: Path) -> ToolResult:
    """Run the work under rocprofv3 once for each kind of output. What one run has written outlasts the next."""
    import torch

    if not (torch.version.hip and torch.cuda.is_available()):
        why = (
            "torch sees no AMD GPU: rocprofv3 runs on a machine with one, and with a torch for ROCm"
        )
        return ToolResult(PROGRAM, "missing", why)
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path="/opt/rocm/bin")
    if program is None:
        why = "rocprofv3 is not in PATH nor in /opt/rocm/bin: install the package rocprofiler-sdk"
        return ToolResult(PROGRAM, "missing", why)
    where, failed = folder / SUBFOLDER, list[tuple[str, Ran]]()
    for name, options in RUNS.items():
        command = [program, *options, "--output-format", "csv", "-d", str(where), "-o", name]
        log = folder / f"rocprofv3-{name}.log"
        ran = run([*command, "--", *work_command("counters", folder)], log)
        if ran.status:
            failed.append((name, ran))
    files = sorted(str(file.relative_to(folder)) for file in where.rglob("*.csv"))
    if not failed:
        return ToolResult(PROGRAM, "ok", files=files)
    why = "; ".join(f"{name}: {failure(ran)}" for name, ran in failed)
    if any(
        word in ran.log.read_text(errors="replace").lower() for word in DENIED for _, ran in failed
    ):
        remedy = "add the user to the groups render and video, or run as root"
        return ToolResult(PROGRAM, "denied", f"{why}. The driver refused: {remedy}", files)
    return ToolResult(PROGRAM, "failed", why, files)


def parse_stats(text: str) -> list[KernelStats]:
    """``*_kernel_stats.csv``. ValueError, with the reason, if it is another file or cut off; so below."""
    return [
        KernelStats(name, int(float(calls)), float(total) * NANOSECOND)
        for name, calls, total in _rows(text, *KINDS["stats"])
    ]


def parse_trace(text: str) -> list[Launch]:
    """``*_kernel_trace.csv``: the launches in the order of the file."""
    return [
        Launch(name, (int(end) - int(start)) * NANOSECOND, {})
        for name, start, end in _rows(text, *KINDS["trace"])
    ]


def parse_counters(text: str) -> list[Launch]:
    """``*_counter_collection.csv``: one launch with all its counters; several lines of a counter are added up."""
    launches: dict[str, Launch] = {}
    for dispatch, name, counter, value in _rows(text, *KINDS["counters"]):
        counters = launches.setdefault(dispatch, Launch(name, None, {})).counters
        counters[counter] = counters.get(counter, 0.0) + float(value)
    return list(launches.values())


def read_files(folder: Path) -> Files:
    """Every CSV of rocprofv3 in a folder and below it, told apart by its header; other CSVs are left alone."""
    found = Files([], [], [], [], 0.0, 0.0, "")
    traced, listed, counted = list[Launch](), list[KernelStats](), list[Launch]()
    runs, devices = list[tuple[float, float]](), list[str]()
    for file in sorted(folder.rglob("*.csv")):
        try:
            text = file.read_text(encoding="utf-8")
            match _kind(text):
                case "trace":
                    traced += parse_trace(text)
                    runs.append(_busy(text))
                case "counters":
                    counted += parse_counters(text)
                case "stats":
                    listed += parse_stats(text)
                case "agents":
                    devices += _devices(text)
                case _:
                    continue
        except (ValueError, OSError) as error:
            found.problems.append((file, str(error)))
        found.read.append(file)
    return found._replace(
        stats=stats_of(traced) if traced else listed,  # both are of the same launches
        counted=counted,
        span=sum(span for span, _ in runs),
        busy=sum(busy for _, busy in runs),
        device=", ".join(dict.fromkeys(devices)),
    )


def _kind(text: str) -> str:
    """Which CSV it is, by its header; "" for another."""
    names = _names(text)
    return next((kind for kind, wanted in KINDS.items() if set(map(_plain, wanted)) <= names), "")


def _names(text: str) -> set[str]:
    """The columns of a CSV, in plain letters."""
    return set(map(_plain, next(csv.reader(text.splitlines()[:1]), [])))


def _busy(text: str) -> tuple[float, float]:
    """(from the first start to the last end, the time with at least one kernel) of a trace; the mean of its GPUs."""
    agents = ["Agent_Id"] if "agentid" in _names(text) else []
    times: dict[str, list[tuple[int, int]]] = {}
    for start, end, *agent in _rows(text, "Start_Timestamp", "End_Timestamp", *agents):
        times.setdefault("".join(agent), []).append((int(start), int(end)))
    if not times:
        return 0.0, 0.0
    every = [one for of_agent in times.values() for one in of_agent]
    span = max(end for _, end in every) - min(start for start, _ in every)
    return span * NANOSECOND, fmean(map(covered, times.values())) * NANOSECOND


def _devices(text: str) -> list[str]:
    rows = _rows(text, *KINDS["agents"])
    return [product or name for kind, product, name in rows if kind.upper() == "GPU"]


def stats_of(launches: Sequence[Launch]) -> list[KernelStats]:
    """The launches of a trace by kernel, for a run without ``--stats``."""
    by_kernel: dict[str, list[float]] = {}
    for one in launches:
        if one.seconds is not None:
            by_kernel.setdefault(one.kernel, []).append(one.seconds)
    return [KernelStats(name, len(times), sum(times)) for name, times in by_kernel.items()]


def _rows(text: str, *wanted: str) -> list[list[str]]:
    """The wanted columns of every line."""
    lines = [line for line in text.splitlines() if line.strip()]  # files may end in an empty line
    header, *rows = csv.reader(lines) if lines else [[]]
    names = [_plain(name) for name in header]
    absent = [name for name in wanted if _plain(name) not in names]
    if absent:
        raise ValueError(f"not this CSV of rocprofv3: it has no column {', '.join(absent)}")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"the CSV of rocprofv3 is cut off: line {number} has {len(row)} of {len(header)} values"
            )
    places = [names.index(_plain(name)) for name in wanted]
    return [[row[place] for place in places] for row in rows]


def traffic(launches: Sequence[Launch], kernel: str) -> float | None:
    """The bytes between L2 and memory of a launch; None if they were not counted."""
    moved = [mean(launches, kernel, name) for name in TRAFFIC]
    return None if None in moved else KIBIBYTE * sum(filter(None, moved))


def _plain(name: str) -> str:
    return name.replace("_", "").replace(" ", "").lower()


def mean(launches: Sequence[Launch], kernel: str, counter: str) -> float | None:
    """The mean of a counter over the launches of a kernel; None if it was not collected."""
    values = [
        one.counters[counter]
        for one in launches
        if one.kernel == kernel and counter in one.counters
    ]
    return sum(values) / len(values) if values else None
