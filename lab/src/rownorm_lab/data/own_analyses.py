"""``OwnAnalysis``: what is known about one launch of a user's kernel on one target, and the table of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from . import texts
from .analyses import CompiledCode, TensorTraffic
from .analysis_tables import CODE_FIGURES
from .files import json_text, read_json, write_whole
from .tables import fitted, wrapped
from .user_files import Source

SCHEMA = 1
FILE = "kernel.json"
LEVEL = 1.01  # predicted times that differ by less are the same


class OwnTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Global memory traffic of a launch, from the traced addresses of some of its programs."""

    traced_programs: int
    tensors: list[TensorTraffic]
    sector_bytes: int
    load_requests_per_program: float
    store_requests_per_program: float
    load_sectors_per_program: float
    store_sectors_per_program: float
    sectors_per_request: float
    sector_use: float  # bytes that programs need over the bytes of all loaded and stored sectors
    passes: float  # over the large tensors that are loaded
    in_flight_bytes: float  # of one program
    memory_read: float
    memory_written: float
    compulsory_bytes: (
        float  # every tensor that is touched, once for its loads and once for its stores
    )
    predicted_seconds: float
    bound: str  # bandwidth, latency or launch


class OwnAnalysis(CompiledCode, frozen=True, kw_only=True):
    """A launch on a target. traffic: None if the addresses could not be traced; ``unknown`` says why."""

    source: Source
    kernel: str
    label: str  # what is special about this launch: "BLOCK 256"
    launch: str  # its arguments in words
    grid: tuple[int, int, int]
    target: str
    device: str
    triton: str
    ceiling: float
    ceiling_source: str
    traffic: OwnTraffic | None
    notes: list[str]  # what is special about the launch
    unknown: list[str]  # what the analysis could not tell, and why
    measured_seconds: float | None = None
    wrong: str = ""  # why its results would be wrong

    @property
    def tensors(self) -> list[TensorTraffic]:
        return self.traffic.tensors if self.traffic else []

    @property
    def programs(self) -> int:
        x, y, z = self.grid
        return x * y * z


class OwnDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Analyses as JSON."""

    kernels: list[OwnAnalysis]
    schema: int = SCHEMA


def judged(one: OwnAnalysis, recorded: OwnAnalysis) -> OwnAnalysis:
    """The analysis of a variant; it is wrong if it stores less of a tensor than the recorded launch."""
    stored = {each.tensor: each.passes for each in one.tensors if each.kind == "store"}
    for each in recorded.tensors:
        now = stored.get(each.tensor, 0.0)
        if each.kind == "store" and one.traffic is not None and now < 0.99 * min(1.0, each.passes):
            programs = texts.count(one.programs, "program")
            why = f"stores {texts.percent(now)} of {each.tensor} with {programs}: it would be wrong"
            return msgspec.structs.replace(one, wrong=why)
    return one


def encoded(analyses: Sequence[OwnAnalysis]) -> bytes:
    """The analyses as JSON."""
    return json_text(OwnDocument(kernels=list(analyses)))


def write(folder: Path, analyses: Sequence[OwnAnalysis]) -> Path:
    """Write the analyses, whole or not at all."""
    return write_whole(folder / FILE, encoded(analyses))


def read(folder: Path) -> list[OwnAnalysis]:
    """The analyses of a folder; none if it has no such file. ValueError if the file cannot be used."""
    file = folder / FILE
    return read_json(file, OwnDocument, "analyses of a kernel").kernels if file.exists() else []


def _traffic(text: Callable[[OwnTraffic], Any]) -> Callable[[OwnAnalysis], str]:
    return lambda one: str(text(one.traffic)) if one.traffic else "unknown"


FIGURES: tuple[tuple[str, str, Callable[[OwnAnalysis], str]], ...] = (
    ("programs", "recorded", lambda k: f"{k.programs:,}"),
    *CODE_FIGURES,
    ("loads per program", "derived", _traffic(lambda t: texts.number(t.load_requests_per_program))),
    ("stores per program", "derived", _traffic(lambda t: texts.number(t.store_requests_per_program))),
    ("sectors loaded per program", "derived", _traffic(lambda t: texts.number(t.load_sectors_per_program))),
    ("sectors stored per program", "derived", _traffic(lambda t: texts.number(t.store_sectors_per_program))),
    ("sectors per access", "derived", _traffic(lambda t: texts.number(t.sectors_per_request))),
    ("use of sectors", "derived", _traffic(lambda t: texts.percent(t.sector_use))),
    ("passes over the inputs", "derived", _traffic(lambda t: texts.number(t.passes))),
    ("in flight per program, B", "derived", _traffic(lambda t: f"{t.in_flight_bytes:,.0f}")),
    ("memory bytes", "derived", _traffic(lambda t: texts.memory(t.memory_read + t.memory_written))),
    (
        "over compulsory bytes",
        "derived",
        _traffic(lambda t: texts.times((t.memory_read + t.memory_written) / t.compulsory_bytes)),
    ),
    ("predicted time", "derived", _traffic(lambda t: texts.duration(t.predicted_seconds))),
    ("bound by", "derived", _traffic(lambda t: t.bound)),
    (
        "predicted GB/s",
        "derived",
        _traffic(lambda t: texts.number(t.compulsory_bytes / t.predicted_seconds / 1e9)),
    ),
    (
        "predicted, of ceiling",
        "derived",
        lambda k: (
            texts.percent(k.traffic.compulsory_bytes / k.traffic.predicted_seconds / k.ceiling)
            if k.traffic
            else ""
        ),
    ),
    (
        "measured time",
        "measured",
        lambda k: texts.duration(k.measured_seconds) if k.measured_seconds else "",
    ),
    (
        "measured GB/s",
        "measured",
        lambda k: (
            texts.number(k.traffic.compulsory_bytes / k.measured_seconds / 1e9)
            if k.measured_seconds and k.traffic
            else ""
        ),
    ),
)  # fmt: skip


def facts(one: OwnAnalysis) -> list[tuple[str, str]]:
    """How the kernel is launched, and the ceiling of the prediction."""
    return [
        ("launch", one.launch),
        ("grid", " x ".join(map(str, one.grid))),
        ("ceiling", f"{texts.number(one.ceiling / 1e9)} GB/s, {one.ceiling_source}"),
    ]


def table(analyses: Sequence[OwnAnalysis]) -> tuple[list[str], list[list[str]]]:
    """(header, lines) of the figures that these analyses have; the last column is the source."""
    rows = [[name, *(cell(one) for one in analyses), source] for name, source, cell in FIGURES]
    header = ["", *(one.label for one in analyses), "source"]
    return header, [row for row in rows if any(row[1:-1])]


def brief_table(analyses: Sequence[OwnAnalysis]) -> tuple[list[str], list[list[str]]]:
    """(header, lines) of the figures that decide, a line for each launch; for more of them than fit side by side."""
    measured = any(one.measured_seconds for one in analyses)
    header = ["registers", "spills, B", "shared, B", "occupancy", "predicted", "bound by"]
    header += ["measured", "of predicted"] if measured else []
    return header, [_brief(one)[: len(header)] for one in analyses]


def _brief(one: OwnAnalysis) -> list[str]:
    traffic, seconds = one.traffic, one.measured_seconds
    return [
        str(one.registers),
        str(one.spilled_bytes),
        str(one.shared_bytes),
        texts.percent(one.occupancy),
        *(
            (texts.duration(traffic.predicted_seconds), traffic.bound)
            if traffic
            else ("unknown", "")
        ),
        texts.duration(seconds) if seconds else "",
        texts.times(seconds / traffic.predicted_seconds) if seconds and traffic else "",
    ]


def text_of(analyses: Sequence[OwnAnalysis]) -> list[str]:
    """The analyses of one kernel on one target, for a terminal."""
    first = analyses[0]
    lines = wrapped(f"{first.kernel} on {first.device} ({first.target}), Triton {first.triton}")
    for name, value in facts(first):
        lines += wrapped(f"  {name:7} {value}", indent=10)
    lines += fitted(*table(analyses))
    lines += [part for line in findings(analyses) for part in wrapped(f"  {line}", indent=2)]
    return lines


def findings(analyses: Sequence[OwnAnalysis]) -> list[str]:
    """What the figures say, in words; then what could not be told."""
    found = []
    usable = [one for one in analyses if not one.wrong]
    timed = [(one, one.traffic) for one in usable if one.traffic]
    if len(analyses) > 1 and timed:
        _, traffic = min(timed, key=lambda pair: pair[1].predicted_seconds)
        limit = traffic.predicted_seconds * LEVEL
        level = [one.label for one, other in timed if other.predicted_seconds <= limit]
        shared = "all" if len(level) == len(analyses) else texts.listed(level)
        found.append(
            f"Smallest predicted time: {texts.duration(traffic.predicted_seconds)} with {shared}, "
            f"bound by {traffic.bound}."
        )
    elif len(analyses) == 1:
        found += [_tensor_line(each) for each in analyses[0].tensors]
    found += [f"{one.label} {one.wrong}." for one in analyses if one.wrong]
    found += [
        f"{one.label}: {one.spilled_bytes} bytes of a thread are spilled to memory."
        for one in analyses
        if one.spilled_bytes
    ]
    unknown = {line: None for one in analyses for line in one.unknown}
    notes = {line: None for one in analyses for line in one.notes}
    return [*found, *(f"Note: {one}." for one in notes), *(f"Not known: {one}." for one in unknown)]


def _tensor_line(one: TensorTraffic) -> str:
    done = {"store": "stored", "copy": "copied to shared memory"}.get(one.kind, "loaded")
    times = "once" if abs(one.passes - 1) < 0.005 else f"{texts.number(one.passes)} times"
    done = "changed atomically" if one.kind == "atomic" else done
    return (
        f"{one.tensor} is {done} {times}, {one.bytes_per_thread} bytes of a thread at once; "
        f"{texts.percent(one.sector_use)} of its sectors are used."
    )
