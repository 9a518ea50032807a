"""A chapter of the page: what a command other than ``bench`` saved in a folder of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Chapter(NamedTuple):
    """One section of the page, with its plots."""

    place: str  # id of the section
    name: str  # in the contents
    html: str  # what is in the section, below its heading
    folders: Sequence[Path]  # that it was made from
    devices: Sequence[str] = ()  # that it is about
    plots: Sequence[
        Callable[[Path], Path | None]
    ] = ()  # each writes a file into a folder, or nothing

    @property
    def section(self) -> str:
        """The section as HTML."""
        return f'<section id="{self.place}"><h2>{self.name}</h2>{self.html}</section>'
