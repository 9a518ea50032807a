"""``Analysis``: everything that is known about one case on one target. Importing it needs neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from .case import Case
from .files import json_text, read_json, write_whole

SCHEMA = 1
FILE = "analysis.json"
# Where the fields of an analysis come from; those of ``Measured`` are measured, all others derived.
COMPILER = (
    "warps",
    "registers",
    "spilled_bytes",
    "shared_bytes",
    "instructions",
    "load_widths",
    "store_widths",
    "bytes_per_thread",
)


class TensorTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Accesses of one kernel to one tensor."""

    tensor: str
    kind: str  # load, store, copy (to shared memory), atomic, poll
    bytes_per_thread: int  # vector width
    requests: int  # memory instructions of warps
    sectors: int
    passes: float  # over the whole tensor
    # Bytes that a program needs over the bytes of these sectors; 1: fully coalesced.
    sector_use: float


class CompiledCode(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel's machine code has and takes, and how many of its programs fit on a multiprocessor."""

    warps: int  # of a program
    registers: int  # of a thread
    registers_allocated: int
    spilled_bytes: int  # of a thread
    shared_bytes: int  # of a program
    occupancy: float
    programs_per_sm: int
    limited_by: str
    instructions: dict[str, int]  # in the machine code, by kind
    # Bytes of a thread: load instructions of that width in the machine code.
    load_widths: dict[int, int]
    store_widths: dict[int, int]
    isa: str


class KernelAnalysis(CompiledCode, frozen=True, kw_only=True):
    """One kernel."""

    kernel: str
    programs: int
    tensors: list[TensorTraffic]
    load_requests_per_row: float
    store_requests_per_row: float
    load_sectors_per_row: float
    store_sectors_per_row: float
    sectors_per_request: float
    sector_bytes: int
    sector_use: float  # of all loads and stores: see TensorTraffic
    passes: float  # over the rows: loads of all row tensors over their size
    in_flight_bytes: float  # of one program
    memory_read: float
    memory_written: float
    predicted_seconds: float
    bound: str  # bandwidth, latency or launch


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A time that the lab's timing measured."""

    seconds: float
    bytes_per_second: float  # compulsory bytes over the time
    ceiling: float | None
    device: str


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """A case on a target. block: of the plain looped kernel; None: rownorm's plan."""

    case: Case
    target: str
    device: str
    block: int | None
    plan: str
    reason: str
    triton: str
    kernels: list[KernelAnalysis]
    memory_bytes: float
    compulsory_bytes: int
    flops: int
    intensity: float  # flops over memory bytes
    ceiling: float  # bytes per second
    ceiling_source: str
    predicted_seconds: float
    measured: Measured | None = None

    @property
    def label(self) -> str:
        """The analysis in one or two words."""
        return f"loop {self.block}" if self.block else "rownorm"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Analyses as JSON, with the source of every field: compiler, derived or measured."""

    analyses: list[Analysis]
    sources: dict[str, str]
    schema: int = SCHEMA


def document(analyses: Sequence[Analysis]) -> Document:
    """The analyses, and where their figures come from."""
    names = [
        name
        for kind in (TensorTraffic, KernelAnalysis, Analysis)
        for name in kind.__struct_fields__
    ]
    texts = ("case", "target", "device", "plan", "reason", "triton", "kernel", "tensor", "kind")
    sources = {
        name: "compiler" if name in COMPILER else "measured" if name == "measured" else "derived"
        for name in names
        if name not in (*texts, "kernels", "tensors", "isa", "ceiling_source", "block")
    }
    return Document(analyses=list(analyses), sources=sources)


def encoded(analyses: Sequence[Analysis]) -> bytes:
    """The analyses as JSON."""
    return json_text(document(analyses))


def write(folder: Path, analyses: Sequence[Analysis]) -> Path:
    """Write the analyses, whole or not at all."""
    return write_whole(folder / FILE, encoded(analyses))


def read(folder: Path) -> list[Analysis]:
    """The analyses of a folder; none if it has no such file. ValueError if the file cannot be used."""
    file = folder / FILE
    if not file.exists():
        return []
    found = read_json(file, Document, "an analysis")
    if found.schema != SCHEMA:
        raise ValueError(f"{file} was written by another version of rownorm; analyze again")
    return found.analyses
