"""Tables as text: aligned columns for a terminal, and Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from ..cases.case import Case

WIDTH = 100  # characters of a line in a terminal


def columns(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, indented by two spaces."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    return [
        "  "
        + "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (header, *lines)
    ]


def shortened(text: str, width: int) -> str:
    """``text``, cut off with an ellipsis if it is wider."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def wrapped(text: str, indent: int = 2) -> list[str]:
    """``text`` on lines of at most ``WIDTH`` characters; all but the first are indented."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def shape_label(case: Case, width: int = 40) -> str:
    """The shape of a case and the name of its origin: ``4096x8192 Llama-3-70B hidden``."""
    return shortened(f"{case.rows}x{case.cols} {case.name}".rstrip(), width)


def markdown(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table; characters with a meaning in Markdown or HTML are escaped."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(escaped(str(cell)) for cell in row)} |" for row in rows)


def escaped(text: str) -> str:
    """``text`` on one line, safe inside a Markdown table."""
    plain = " ".join(text.split())
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
