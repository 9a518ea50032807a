"""A ``Record`` is one provider on one case, measured or not: one self-contained line of JSON.

Records of one case with the same ``run`` were measured together: ``seconds[i]`` of all of them belong to the same
round, so their ratios are paired. Changing the meaning of a field requires a new ``SCHEMA``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Self

import msgspec

from .case import Case
from .user_files import Source

SCHEMA = 1
FILE = "records.jsonl"  # the name in a run folder
OURS, EAGER, CEILING = "rownorm", "torch", "ceiling"  # providers with a role of their own
INVARIANT = "rownorm_invariant"  # OURS in the mode rownorm.batch_invariant: no peer
Status = Literal["ok", "missing", "refused", "wrong", "failed"]
Timer = Literal["cuda_graph", "device_events", "cpu_clock"]


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """How the seconds were measured. Records are comparable if ``timer`` and ``cold`` are equal."""

    timer: Timer
    rotation: int  # sets of inputs that the calls of a round use in turn
    calls: int  # calls in one round
    rounds: int
    cold: bool  # whether the inputs of a call are out of the cache


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
    versions: dict[str, str] = {}  # of the installed packages of providers
    settings: dict[str, str] = {}  # that affect results or times: fp_fusion, TRITON_INTERPRET, ...
    node: str = ""  # the host's name and its GPU, if the run used a cluster
    gpu: str = ""

    def describe(self) -> str:
        """Device, driver and versions in one line."""
        packages = [
            f"{name} {version}" for name, version in self.versions.items() if name != "torch"
        ]
        named = (
            f"{name} {value}"
            for name in ("driver", "torch", "triton")
            if (value := getattr(self, name))
        )
        return ", ".join([self.device, *named, *packages])

    def differences(self, other: Environment) -> list[str]:
        """Why times of this environment and of another must not be mixed, in words; empty: they may."""
        names = ("device", "arch", "torch", "triton", "rownorm", "driver", "settings")
        return [
            f"{name} is {getattr(other, name)}, not {getattr(self, name)}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of the vendor's library during the measurement; None if it gave none."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttled: list[str] = []  # active reasons


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the check before timing: errors against fp64."""

    max_error: float  # largest |got - exact| over all outputs
    mean_error: float
    max_ulp: float  # the same in steps of the output's dtype at the exact value
    worst: str = ""  # the output with the largest error: "y", "dx", "dweight", ...


class Record(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA
):
    """One provider on one case. Every line of JSON also has the field ``schema``."""

    case: Case
    provider: str
    status: Status = "ok"
    why: str = ""  # the reason, unless the status is ok
    method: Method | None = None
    seconds: list[float] = []  # device time of one call, one value per round
    host_seconds: list[float] = []  # host time of one call, without waiting for the device
    peak_bytes: int | None = None  # most memory allocated during one call, beyond its inputs
    accuracy: Accuracy | None = None
    environment: Environment
    clocks: Clocks | None = None
    # Reasons to distrust the times: "faster than the peak", "spread of 40%".
    suspect: list[str] = msgspec.field(default_factory=list, name="suspicions")
    source: Source | None = None  # of a provider in a user's file
    run: str = ""  # the id of the benchmark run
    time: str = ""  # UTC, ISO 8601

    @property
    def is_timed(self) -> bool:
        """Whether there are times, of the device or of the host."""
        return bool(self.seconds or self.host_seconds)

    @property
    def key(self) -> tuple[str, str]:
        """The case and the provider; ``--resume`` skips the keys it finds."""
        return self.case.key, self.provider


class Writer:
    """Appends records to a file, one line each; a line is on the disk when ``write`` returns.

    Without ``append`` an existing file is an error. A failed write (a full disk) leaves the earlier lines intact. An
    unfinished last line, left by a killed run, is terminated, so that it does not damage the next one.
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False) -> None:
        self.path = Path(path)
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if append else os.O_EXCL)
        self._file = os.open(self.path, how, 0o644)
        if append and _ends_inside_a_line(self.path):
            self._append(b"\n")

    def write(self, record: msgspec.Struct) -> None:
        """Append a record, or a struct of another file of lines."""
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

    def __exit__(self, *_: object) -> None:
        self.close()


class Reading(NamedTuple):
    """The valid records, and (line number, reason) of every line that could not be read."""

    records: list[Record]
    damaged: list[tuple[int, str]]


def read(*paths: str | os.PathLike[str]) -> Reading:
    """The records of files, or of folders that hold ``records.jsonl``; OSError if a file does not exist.

    If several files are read, the reason of a damaged line names its file. Equal environments are one object, because
    every line has one and it is larger than the measurement.
    """
    reading = Reading([], [])
    environments: dict[bytes, Environment] = {}
    files = [path / FILE if path.is_dir() else path for path in map(Path, paths)]
    for file in files:
        for number, line in _lines(file):
            try:
                record = _decode(line)
            except ValueError as error:
                where = f"{file}: " if len(files) > 1 else ""
                reading.damaged.append((number, f"{where}{error}"))
                continue
            text = msgspec.json.encode(record.environment)
            shared = environments.setdefault(text, record.environment)
            reading.records.append(msgspec.structs.replace(record, environment=shared))
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
    """The record of a line; ValueError with the reason."""
    ended = line.endswith(b"\n")
    # A line that was cut off and terminated by a resumed run would fail at its newline.
    line = line.rstrip(b"\n")
    try:
        schema = _schema_decoder.decode(line).schema
    except msgspec.ValidationError as error:
        raise ValueError(f"not a record: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not ended or "truncated" in str(error):
            raise ValueError("cut off: the run ended while the line was written") from None
        raise ValueError(f"not JSON: {error}") from None
    if schema != SCHEMA:
        since = "a newer rownorm wrote it" if schema > SCHEMA else "no version of rownorm wrote it"
        raise ValueError(f"schema {schema}, but this rownorm reads {SCHEMA}: {since}")
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
