"""A chapter of the page: what a command other than ``bench`` saved in a folder of the report; its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from ..data.tables import Table


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


# Headings of columns that are aligned as numbers; those that end with "/s" are, too.
NUMBERS = (
    *("calls", "time", "share", "value", "with rownorm", "saves", "forward", "backward", "step"),
    *("spread", "torch", "speed"),
)


def table_html(table: Table) -> str:
    """A table with its title. The cells of a first column without a heading are headings of their lines."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    kinds = [' class="number"' if _is_number(name) else "" for name in table.header]
    tags = ["td" if table.header[0] else "th", *["td"] * (len(table.header) - 1)]
    lines = "".join(f"<tr>{''.join(map(_cell, line, tags, kinds))}</tr>" for line in table.lines)
    return (
        f'<h3>{escape(table.title)}</h3><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _is_number(heading: str) -> bool:
    return heading in NUMBERS or heading.endswith("/s")


def _cell(text: str, tag: str, kind: str) -> str:
    long = ' class="wrap"' if len(text) > 60 else ""
    return f"<{tag}{kind or long}>{escape(text)}</{tag}>"
