"""Tables as text: aligned columns for a terminal, and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, indented by two spaces."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    return [
        "  "
        + "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (header, *lines)
    ]


def markdown(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table; characters with a meaning in Markdown or HTML are escaped."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(escaped(str(cell)) for cell in row)} |" for row in rows)


def escaped(text: str) -> str:
    """``text`` on one line, safe inside a Markdown table."""
    plain = " ".join(text.split())
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
