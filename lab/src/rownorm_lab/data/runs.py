"""A benchmark run on disk: a folder with the request, ``plan.json``, and the records that were measured."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from .case import Case
from .files import read_json, write_json
from .records import FILE, Record, read
from .user_files import Source

REQUEST = "plan.json"


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measures; enough to resume it."""

    cases: list[Case]
    providers: list[str]
    rounds: int
    seed: int = 0
    sources: list[Source] = []  # of the providers in users' files


def write_request(folder: Path, request: BenchRequest) -> None:
    """Write ``plan.json``, whole or not at all."""
    write_json(folder / REQUEST, request)


def read_request(folder: Path) -> BenchRequest:
    """The request of a run folder; ValueError with the reason if it cannot be read."""
    return read_json(folder / REQUEST, BenchRequest, "a request of bench")


def records_in(folder: Path) -> list[Record]:
    """The records that a run folder holds so far."""
    return read(folder).records if (folder / FILE).exists() else []


def new_name() -> Path:
    """A folder name made of the time, which does not exist yet."""
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    names = (Path("results") / (stamp if n == 1 else f"{stamp}-{n}") for n in range(1, 1000))
    return next(name for name in names if not name.exists())


def run_id() -> str:
    """A unique name for one invocation. Records with the same run id were measured together."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"


def timestamp() -> str:
    """The time of a record: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_taken(folder: Path) -> bool:
    """Whether writing there would overwrite something: a file of that name, or a folder that is not empty."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
