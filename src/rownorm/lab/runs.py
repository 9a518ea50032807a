"""A run of ``bench`` on disk: a folder with what was asked for, ``plan.json``, and what was measured, the records."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from .cases import Case
from .files import write_whole
from .records import FILE, Record, read

PLAN = "plan.json"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measures: enough to go on with it."""

    cases: list[Case]
    providers: list[str]
    rounds: int
    seed: int = 0


def write_plan(folder: Path, plan: Plan) -> None:
    """Write ``plan.json`` whole."""
    write_whole(folder / PLAN, msgspec.json.format(msgspec.json.encode(plan), indent=1))


def read_plan(folder: Path) -> Plan:
    """The plan of a folder; ValueError in words where it has none that can be read."""
    try:
        return msgspec.json.decode((folder / PLAN).read_bytes(), type=Plan)
    except OSError as error:
        raise ValueError(
            f"{folder} is no folder that bench has written: {PLAN}: {error.strerror}"
        ) from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{folder / PLAN} is damaged: {error}") from None


def measured(folder: Path) -> list[Record]:
    """The records of a folder so far."""
    return read(folder).records if (folder / FILE).exists() else []


def new_name(parent: Path = Path("results")) -> Path:
    """A folder that is not there yet, named after the time."""
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    names = (parent / (stamp if n == 1 else f"{stamp}-{n}") for n in range(1, 1000))
    return next(name for name in names if not name.exists())


def run_id() -> str:
    """The name of one invocation: records that carry the same one were measured together."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"


def is_taken(folder: Path) -> bool:
    """Whether something would be overwritten: a file of that name, or a folder that is not empty."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
