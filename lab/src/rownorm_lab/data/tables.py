"""Tables as text: aligned columns for a terminal, and Markdown."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .case import Case

WIDTH = 100  # characters of a line of text, where the output is no terminal
LEAST = 24  # characters that a shortened cell keeps


class Table(NamedTuple):
    """A table with a title: for the terminal, for Markdown and for the page."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


def terminal_width() -> int | None:
    """Characters of a line of the terminal, as COLUMNS or the terminal says; None where the output is none.

    What goes into a pipe or a file is never cut.
    """
    if (given := os.environ.get("COLUMNS", "")).isdigit() and int(given) > 0:
        return int(given)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """As ``columns``. A table that is wider than the terminal goes on below, with the columns that name its lines."""
    room = terminal_width()
    widths = [2 + max(map(len, column)) for column in zip(header, *lines, strict=True)]
    n_names = _names_of_lines(lines)
    if room is None or sum(widths[:n_names]) > room // 2:
        n_names = 1
    names = range(n_names)
    parts, part, used = list[list[int]](), list[int](), sum(widths[:n_names])
    for place in range(n_names, len(widths)):
        if part and room is not None and used + widths[place] > room:
            parts.append(part)
            part, used = [], sum(widths[:n_names])
        part.append(place)
        used += widths[place]
    found: list[str] = []
    for places in [*parts, part]:
        chosen = [[cells[place] for place in (*names, *places)] for cells in (header, *lines)]
        found += [*([""] if found else []), *columns(chosen[0], chosen[1:])]
    return found


def _names_of_lines(lines: Sequence[Sequence[str]]) -> int:
    """How many of the first columns tell the lines apart; 1 if not even all do."""
    for n in range(1, len(lines[0]) if lines else 1):
        if len({tuple(line[:n]) for line in lines}) == len(lines):
            return n
    return 1


def columns(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, indented by two spaces."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    return [
        "  "
        + "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (header, *lines)
    ]


def narrowed(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """As ``columns``, one text for each line. If the table is wider than the terminal, its first column is narrower,
    and what does not fit there goes on below in the same text.
    """
    rows, room = [header, *lines], terminal_width()
    others = sum(
        2 + max(map(len, column)) for column in zip(*(row[1:] for row in rows), strict=True)
    )
    width = max(len(row[0]) for row in rows)
    if room is not None:
        width = min(width, max(LEAST, room - others - 2))
    parts = [textwrap.wrap(row[0], width, subsequent_indent="  ") or [""] for row in rows]
    aligned = columns(
        [parts[0][0], *header[1:]],
        [[part[0], *row[1:]] for part, row in zip(parts[1:], lines, strict=True)],
    )
    return [
        "\n".join([line, *(f"  {rest}" for rest in part[1:])])
        for line, part in zip(aligned, parts, strict=True)
    ]


def table_text(table: Table) -> str:
    """A table with its title. In a terminal, the widest column is shortened if that makes the table fit, down to
    ``LEAST`` characters; what is still too wide goes on below.
    """
    room, lines = terminal_width(), table.lines
    if room is not None and lines:
        widths = [max(map(len, column)) for column in zip(table.header, *lines, strict=True)]
        most = max(widths)
        rest = sum(widths) - most + 2 * len(widths)
        lines = [[shortened(cell, max(LEAST, room - rest)) for cell in line] for line in lines]
    return "\n".join(("", *wrapped(table.title), *fitted(table.header, lines)))


def shortened(text: str, width: int) -> str:
    """``text``, cut off with an ellipsis if it is wider."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def wrapped(text: str, indent: int = 2, *, breaks_words: bool = False) -> list[str]:
    """``text`` on lines of at most ``WIDTH`` characters, or of the terminal's; all but the first are indented."""
    room = min(WIDTH, terminal_width() or WIDTH)
    return textwrap.wrap(
        text,
        room,
        subsequent_indent=" " * indent,
        break_long_words=breaks_words,
        break_on_hyphens=False,
    )


def shape_label(case: Case, width: int = 40) -> str:
    """The shape of a case and the name of its origin: ``4096x8192 Llama-3-70B hidden``."""
    return shortened(f"{case.rows}x{case.cols} {case.name}".rstrip(), width)


def markdown(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table; characters with a meaning in Markdown or HTML are escaped."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(escaped(str(cell)) for cell in row)} |" for row in rows)


def sections(tables: Iterable[Table]) -> list[str]:
    """Sections of a Markdown page, one for each table that has lines."""
    return [
        f"## {escaped(one.title)}\n\n{markdown(one.header, one.lines)}"
        for one in tables
        if one.lines
    ]


def markdown_page(title: str, command: str, *paragraphs: str) -> str:
    """A Markdown page that ``command`` has written; empty paragraphs are left out."""
    generated = f"Generated by `{command}`. Do not edit."
    return "\n\n".join([f"# {title}", generated, *filter(None, paragraphs)]) + "\n"


def escaped(text: str) -> str:
    """``text`` on one line, safe inside a Markdown table."""
    plain = " ".join(text.split())
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
