"""A ``Record`` is one provider on one case, measured or refused: one line of JSON that stands alone.

Records of one case that carry the same ``run`` were measured together: ``seconds[i]`` of two of them belong to the same
round, so their ratios are paired.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import msgspec

from .cases import Case

SCHEMA = 1
FILE = "records.jsonl"  # in a folder of results
OURS, EAGER, CEILING = "rownorm", "torch", "ceiling"  # providers that every reader of records knows
Status = Literal["ok", "missing", "refused", "wrong", "failed"]
Timer = Literal["cuda_graph", "device_events", "cpu_clock"]


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """How the seconds came about. Records are compared only where ``timer`` and ``cold`` agree."""

    timer: Timer
    rotation: int  # sets of inputs that the calls of a round go through
    calls: int  # calls in one round
    rounds: int
    cold: bool  # the inputs of a call are not in the cache


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its software."""

    device: str  # "NVIDIA H200", or the CPU's name
    kind: Literal["cuda", "hip", "cpu"]
    arch: str = ""  # "sm_90", "gfx942", "x86_64"
    peak_bytes_per_second: float | None = None
    peak_source: str = ""  # where that figure comes from
    host: str = ""  # the CPU's name
    platform: str = ""
    python: str = ""
    torch: str = ""
    triton: str = ""
    rownorm: str = ""
    driver: str = ""
    versions: dict[str, str] = {}  # of the providers' packages that are here
    settings: dict[str, str] = {}  # what changes results or times: contraction, interpreter, ...


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """What the vendor's library said around the measurement; None where it was silent."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttled: list[str] = []  # reasons that were active


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The gate before timing: errors against fp64, as multiples of one rounding of the output's dtype."""

    max_error: float  # largest |got - exact|, over every output
    mean_error: float
    max_ulp: float  # the same in units of the output dtype's spacing at the exact value's scale
    worst: str = ""  # which output: "y", "dx", "dweight", ...


class Record(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA
):
    """One provider on one case. Every line also carries ``schema``."""

    case: Case
    provider: str
    status: Status = "ok"
    why: str = ""  # for anything but ok: what to tell a reader
    method: Method | None = None
    seconds: list[float] = []  # device time of one call, one figure a round
    host_seconds: list[float] = []  # what the caller waits for one call, the device not waited for
    peak_bytes: int | None = None  # most memory alive during one call beyond its inputs
    accuracy: Accuracy | None = None
    environment: Environment
    clocks: Clocks | None = None
    suspicions: list[str] = []  # to doubt the figures: "faster than the peak", "spread 40 %"
    run: str = ""  # the invocation of bench that made it
    time: str = ""  # UTC, ISO 8601

    @property
    def key(self) -> tuple[str, str]:
        """The case and the provider: what ``--resume`` skips."""
        return self.case.key, self.provider


class Writer:
    """Appends records to a file, one line each, on the disk when ``write`` returns.

    A file that is there already is refused unless ``append``. A write that fails (a full disk) leaves the lines before
    it as they were; a last line that a killed run left unfinished is ended, so that it damages no other.
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        self.path = Path(path)
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if append else os.O_EXCL)
        self._file = os.open(self.path, how, 0o644)
        if append and _ends_inside_a_line(self.path):
            self._append(b"\n")

    def write(self, record: Record) -> None:
        self._append(msgspec.json.encode(record) + b"\n")

    def _append(self, line: bytes) -> None:
        before = os.fstat(self._file).st_size
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            if os.fstat(self._file).st_size > before:
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Reading(NamedTuple):
    """What was read: the good records, and (line number, reason) for every line that could not be."""

    records: list[Record]
    damaged: list[tuple[int, str]]


def read(*paths: str | os.PathLike[str]) -> Reading:
    """The records of files, or of folders that hold ``records.jsonl``; OSError where there is none.

    Where several files are read, the reason for a damaged line names its file.
    """
    reading = Reading([], [])
    files = [path / FILE if path.is_dir() else path for path in map(Path, paths)]
    for file in files:
        for number, line in _lines(file):
            try:
                reading.records.append(_decode(line))
            except ValueError as error:
                where = f"{file}: " if len(files) > 1 else ""
                reading.damaged.append((number, f"{where}{error}"))
    return reading


class _Schema(msgspec.Struct):
    schema: int = 0


_decoder = msgspec.json.Decoder(Record)
_schema_decoder = msgspec.json.Decoder(_Schema)


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield number, line


def _decode(line: bytes) -> Record:
    """The record of a line; ValueError with the reason, in words for whoever reads the report."""
    ended = line.endswith(b"\n")
    # Of a line that was cut off, and ended when the run went on, the end would be the error.
    line = line.rstrip(b"\n")
    try:
        schema = _schema_decoder.decode(line).schema
    except msgspec.ValidationError as error:
        raise ValueError(f"not a record: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not ended or "truncated" in str(error):
            raise ValueError("cut off: the run ended while it was being written") from None
        raise ValueError(f"not JSON: {error}") from None
    if schema != SCHEMA:
        since = "a newer rownorm wrote it" if schema > SCHEMA else "no version of rownorm wrote it"
        raise ValueError(f"schema {schema}, where this rownorm reads {SCHEMA}: {since}")
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a record: {error}") from None


def _ends_inside_a_line(file: Path) -> bool:
    with file.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size == 0:
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"
