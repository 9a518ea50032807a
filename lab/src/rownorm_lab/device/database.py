"""The database of devices, ``devices.json``: peak bandwidth, peak FLOP/s and cache sizes, each with its source."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec


class Value(msgspec.Struct, frozen=True):
    """A figure and the key of its source."""

    value: int
    source: str


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device of the database; ``pattern`` must match the whole name that the driver gives."""

    name: str
    pattern: str
    peak_bytes_per_second: Value
    peak_flops_fp32: Value | None = None
    sms: Value | None = None
    l2_bytes: Value | None = None


class Database(msgspec.Struct, frozen=True):
    """The whole file; ``sources`` maps the key of a source to its text."""

    sources: dict[str, str]
    devices: list[Known]


@cache
def database() -> Database:
    """The database, read once."""
    file = Path(__file__).with_name("devices.json")
    return msgspec.json.decode(file.read_bytes(), type=Database)


def known(name: str) -> Known | None:
    """The device of that name, or None. A partition of a GPU (MIG) has a name of its own and does not match."""
    found = (one for one in database().devices if re.fullmatch(one.pattern, name))
    return next(found, None)
