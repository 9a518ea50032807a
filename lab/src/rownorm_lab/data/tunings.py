"""What a tuning folder holds, for resuming it and for ``rownorm report``.

request.json   what is tuned, and the environment
trials.jsonl   every trial (``journal``)
tuning.json    the rows that were found so far, how many candidates were left out and why, the verified rows
<arch>.json    the table, once all rows are found
study.json     what --study found about fusion; analysis.json has its block sizes
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .files import read_json, write_json
from .records import Environment

SCHEMA = 1
REQUEST, SUMMARY, STUDY = "request.json", "tuning.json", "study.json"
Saved = TypeVar("Saved", bound=msgspec.Struct)


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is tuned; enough to resume it. verify: rows of the shipped table that are searched again."""

    environment: Environment
    operations: list[str] = []
    directions: list[str] = []
    dtypes: list[str] = []
    widths: list[int] = []
    residual_dtype: str | None = None
    option: str = ""
    update: str = ""  # path of the table whose other rows are copied
    verify: list[dict[str, Any]] = []
    schema: int = SCHEMA


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the shipped table that was searched again."""

    study: str
    shipped: dict[str, Any]  # settings
    found: dict[str, Any]
    ratio: float  # time with the settings that were found over that with the shipped ones


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What a tuning has found so far. left_out: candidates that have no time, by cause."""

    environment: Environment
    date: str
    timed: int  # candidates
    left_out: dict[str, int]
    rows: list[dict[str, Any]]
    verified: list[Verified] = []
    studies_left: int = 0
    table: str = ""  # the name of the file
    schema: int = SCHEMA


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """RMSNorm and ReLU, fused or in two steps. Bytes are those between the GPU and its memory."""

    name: str
    kernels: int
    predicted_bytes: float
    predicted_seconds: float
    measured_bytes: float | None = None
    measured_seconds: float | None = None


class Fusion(msgspec.Struct, frozen=True, kw_only=True):
    """Both ways side by side. note: why something was not measured."""

    title: str
    device: str
    fused: Way
    two_steps: Way
    note: str = ""


class FusionStudy(msgspec.Struct, frozen=True, kw_only=True):
    """The fusion study of each case. The block sizes are beside it, in the file of ``rownorm analyze``."""

    fusions: list[Fusion]
    schema: int = SCHEMA


def write(folder: Path, name: str, content: msgspec.Struct) -> Path:
    """Write a file of the folder, whole or not at all."""
    return write_json(folder / name, content)


def read(folder: Path, name: str, kind: type[Saved]) -> Saved | None:
    """A file of the folder; None if there is none. ValueError with the reason if it cannot be used."""
    file = folder / name
    if not file.exists():
        return None
    found = read_json(file, kind, "a tuning")
    if found.schema != SCHEMA:  # type: ignore[attr-defined]
        raise ValueError(f"{file} was written by another version of rownorm")
    return found
