"""Shapes as text: ``4096x8192``, ``1..512x4096``, ``8,32x4096``."""

from __future__ import annotations

import re
from collections.abc import Sequence

Shape = tuple[int, int]

SHAPE_EXAMPLES = "4096x8192, 8,32x4096, 1..512x4096, 4096x256..8192:256"
MOST_SHAPES = 10_000  # of one text; a run of so many cases takes days
_SIZE = r"\d+[km]?"
_PART = re.compile(rf"({_SIZE})(?:\.\.({_SIZE})(?::({_SIZE}))?)?")


def parse_shapes(text: str) -> list[Shape]:
    """The shapes of a text ``ROWSxCOLS``, where each side is a list of sizes and ranges.

    ``256..8192`` doubles, ``256..8192:256`` goes in steps of 256, ``4k`` is 4096 and ``1m`` is 1048576.
    """
    sides = text.lower().replace(" ", "").split("x")
    if len(sides) != 2:
        raise ValueError(_malformed(text, "a shape is ROWSxCOLS"))
    rows, cols = (_sizes(side, text) for side in sides)
    total = sum(map(len, rows)) * sum(map(len, cols))
    if total > MOST_SHAPES:  # counted before they are made
        raise ValueError(
            f"shape {text!r}: {total:,} shapes, and {MOST_SHAPES:,} are the most; take larger steps"
        )
    first, second = (
        list(dict.fromkeys(size for part in side for size in part)) for side in (rows, cols)
    )
    return [(r, c) for r in first for c in second]


def _sizes(side: str, text: str) -> list[Sequence[int]]:
    """The sizes of each part of a side; a range in steps is not made."""
    sizes: list[Sequence[int]] = []
    for part in side.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(_malformed(text, f"{part!r} is neither a size nor a range"))
        first, last, step = (None if size is None else _size(size) for size in match.groups())
        if first == 0 or step == 0:
            raise ValueError(_malformed(text, "sizes and steps are at least 1"))
        assert first is not None
        if last is not None and last < first:
            raise ValueError(_malformed(text, f"the range {part!r} ends before it starts"))
        sizes.append(_range(first, first if last is None else last, step))
    return sizes


def _range(first: int, last: int, step: int | None) -> Sequence[int]:
    if step is not None:
        return range(first, last + 1, step)
    sizes = [first]
    while sizes[-1] * 2 <= last:
        sizes.append(sizes[-1] * 2)
    return sizes


def _size(text: str) -> int:
    unit = {"k": 1024, "m": 1024**2}.get(text[-1])
    return int(text[:-1]) * unit if unit else int(text)


def _malformed(text: str, rule: str) -> str:
    return f"shape {text!r}: {rule}; write for example {SHAPE_EXAMPLES}"
