"""Analyses on disk: ``analysis.json`` in a folder, which ``rownorm report`` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..results.files import write_whole
from .analysis import SCHEMA, Analysis

FILE = "analysis.json"


def write(folder: Path, analyses: Sequence[Analysis]) -> Path:
    """Write the analyses, whole or not at all."""
    return write_whole(folder / FILE, msgspec.json.format(msgspec.json.encode(analyses), indent=1))


def read(folder: Path) -> list[Analysis]:
    """The analyses of a folder; none if it has no such file. ValueError if the file cannot be used."""
    file = folder / FILE
    if not file.exists():
        return []
    try:
        analyses = msgspec.json.decode(file.read_bytes(), type=list[Analysis])
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} is damaged: {error}") from None
    if any(one.schema != SCHEMA for one in analyses):
        raise ValueError(f"{file} was written by another version of rownorm; analyze again")
    return analyses
