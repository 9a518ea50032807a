"""A chapter of the page: what a command other than ``bench`` saved in a folder of the report; its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import vl_convert

from ..data.tables import Table
from .plots import CONFIG

# As in the PNG files, but colors that the page decides.
ON_PAGE = CONFIG | {
    "background": "transparent",
    "axis": {
        "gridColor": "currentColor",
        "gridOpacity": 0.15,
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "domainColor": "currentColor",
        "tickColor": "currentColor",
    },
    "title": CONFIG["title"] | {"color": "currentColor", "subtitleColor": "currentColor"},
    "legend": CONFIG["legend"] | {"labelColor": "currentColor"},
    "header": {"labelColor": "currentColor", "titleColor": "currentColor"},
    "text": {"color": "currentColor"},
    "rule": {"color": "currentColor"},
}

LONG_WORD = 20  # letters; a longer one, as the name of a kernel, breaks where there is little room


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


def table_html(table: Table) -> str:
    """A table with its title. The cells of a first column without a heading are headings of their lines."""
    cells = list(zip(*table.lines, strict=True)) or [()] * len(table.header)
    numbers = [_are_numbers(column) for column in cells]
    heads = "".join(
        f"<th{_classes(number=one)}>{escape(name)}</th>"
        for name, one in zip(table.header, numbers, strict=True)
    )
    tags = ["td" if table.header[0] else "th", *["td"] * (len(table.header) - 1)]
    lines = "".join(f"<tr>{''.join(map(_cell, line, tags, numbers))}</tr>" for line in table.lines)
    return (
        f'<h3>{escape(table.title)}</h3><p class="note scroll-hint">Scroll sideways for more columns &rarr;</p>'
        f'<div class="scroll whole" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def chart_html(spec: dict[str, Any]) -> str:
    """A chart as a picture in the page: as wide as the page at most, with the page's colors, also in the dark."""
    svg = vl_convert.vegalite_to_svg(spec | {"config": ON_PAGE, "padding": 4})
    return f'<div class="panel still">{svg}</div>'


def facts_html(facts: Sequence[tuple[str, str]]) -> str:
    """Names with their values."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return f'<dl class="facts">{items}</dl>'


def _are_numbers(column: Sequence[str]) -> bool:
    """Whether most cells that have something begin like a number."""
    present = [cell for cell in column if cell]
    return 2 * sum(cell.lstrip("-+")[:1].isdigit() for cell in present) > len(present)


def _cell(text: str, tag: str, number: bool) -> str:
    longest = max(map(len, text.split()), default=0)
    classes = _classes(number=number, wrap=not number and len(text) > 60, name=longest > LONG_WORD)
    return f"<{tag}{classes}>{escape(text)}</{tag}>"


def _classes(**wanted: bool) -> str:
    """``class="..."`` with the names that are wanted."""
    names = " ".join(name for name, is_wanted in wanted.items() if is_wanted)
    return f' class="{names}"' if names else ""
