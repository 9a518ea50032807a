"""Analyses on disk: ``analysis.json`` in a folder, which ``rownorm report`` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from .analyses import SCHEMA, Analysis, Document, document
from .files import write_whole

FILE = "analysis.json"


def encoded(analyses: Sequence[Analysis]) -> bytes:
    """The analyses as JSON."""
    return msgspec.json.format(msgspec.json.encode(document(analyses)), indent=1)


def write(folder: Path, analyses: Sequence[Analysis]) -> Path:
    """Write the analyses, whole or not at all."""
    return write_whole(folder / FILE, encoded(analyses))


def read(folder: Path) -> list[Analysis]:
    """The analyses of a folder; none if it has no such file. ValueError if the file cannot be used."""
    file = folder / FILE
    if not file.exists():
        return []
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Document)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} cannot be read as an analysis: {error}") from None
    if found.schema != SCHEMA:
        raise ValueError(f"{file} was written by another version of rownorm; analyze again")
    return found.analyses
