"""Counters by source line: what Nsight Compute prints with ``--csv --page source --print-source cuda,sass``.

Each launch has a table for each source file that its code comes from. A row with a line number has the totals of the
line, the rows below it are the line's instructions. Quotes inside the source text are not escaped.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import NamedTuple

from ..data.profiles import SourceLine

FIRST = ["Line No", "Source", "Address", "Source"]
SAMPLES, INSTRUCTIONS = "# Samples", "Instructions Executed"
SECTORS, EXCESS = "L2 Theoretical Sectors Global", "L2 Theoretical Sectors Global Excessive"
STALL, NOT_ISSUED = "stall_", " (Not Issued)"
PACKAGES = ("site-packages", "dist-packages", "src")  # folders that packages are in


class _Place(NamedTuple):
    kernel: str
    file: str
    line: int


def parse(text: str) -> list[SourceLine]:
    """The lines of each kernel, summed over its launches: kernels and lines with the most samples first.

    ValueError, with the reason, if this is not the source page of ncu, or if it is cut off.
    """
    totals: dict[_Place, Counter[str]] = {}
    texts: dict[_Place, str] = {}
    file, kernel, header = "", "", list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("=="):
            continue
        cells = line.strip().removeprefix('"').removesuffix('"').split('","')
        if cells[0] in ("File Path", "Function Name") and len(cells) == 2:
            if cells[0] == "File Path":
                file, header = cells[1], []
            else:
                kernel = cells[1]
        elif cells[: len(FIRST)] == FIRST:
            header = _checked(cells)
        elif not header:
            raise ValueError(f"not the source page of ncu: line {number} is in no table")
        elif len(cells) < len(header) or not line.rstrip().endswith('"'):
            found = f"line {number} has {len(cells)} of {len(header)} values"
            raise ValueError(f"the source page of ncu is cut off: {found}")
        elif cells[0]:
            place = _Place(kernel, file, int(cells[0]))
            n = len(header) - 2  # columns after the source text, which may look like several
            texts[place] = '","'.join(cells[1:-n])
            totals.setdefault(place, Counter()).update(_numbers(header[2:], cells[-n:]))
    if not totals:
        raise ValueError("not the source page of ncu: it has no source line")
    of_kernel = Counter[str]()
    for place, counts in totals.items():
        of_kernel[place.kernel] += counts[SAMPLES]
    lines = [_line(place, texts[place], counts) for place, counts in totals.items()]
    return sorted(
        filter(_was_run, lines),
        key=lambda one: (-of_kernel[one.kernel], one.kernel, -one.samples, one.file, one.line),
    )


def short_path(file: str, home: str) -> str:
    """A path relative to ``home`` or, outside of it, to the folder of its package; else its last two parts."""
    path = PurePosixPath(file)
    if home and path.is_relative_to(home):
        return str(path.relative_to(home))
    places = [place for place, part in enumerate(path.parts) if part in PACKAGES]
    first = places[-1] + 1 if places else -2
    return "/".join(path.parts[first:]).lstrip("/")


def _checked(header: list[str]) -> list[str]:
    missing = [name for name in (SAMPLES, INSTRUCTIONS, SECTORS, EXCESS) if name not in header]
    if missing:
        raise ValueError(f'the source page of ncu has no column "{missing[0]}"')
    return header


def _numbers(names: list[str], values: list[str]) -> dict[str, int]:
    """The counts of a row that are kept."""
    wanted = (SAMPLES, INSTRUCTIONS, SECTORS, EXCESS)
    return {
        name: int(value.replace(",", ""))
        for name, value in zip(names, values, strict=True)
        if (name in wanted or (name.startswith(STALL) and not name.endswith(NOT_ISSUED)))
        and value not in ("", "-")
    }


def _line(place: _Place, text: str, counts: Counter[str]) -> SourceLine:
    [(stall, stalled)] = Counter(
        {name: count for name, count in counts.items() if name.startswith(STALL)}
    ).most_common(1) or [("", 0)]
    return SourceLine(
        kernel=place.kernel,
        file=place.file,
        line=place.line,
        text=text.strip(),
        samples=counts[SAMPLES],
        instructions=counts[INSTRUCTIONS],
        sectors=counts[SECTORS],
        excess_sectors=counts[EXCESS],
        stall=stall.removeprefix(STALL) if stalled else "",
        stall_samples=stalled,
    )


def _was_run(one: SourceLine) -> bool:
    return bool(one.samples or one.instructions)
