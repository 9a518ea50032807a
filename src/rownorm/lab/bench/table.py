"""The table that ``rownorm bench`` prints at its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ..results.records import CEILING
from ..results.rows import CaseLine, Results, case_line, cases_of
from ..texts import duration, if_known, percent


def bench_table(results: Results, peers: Sequence[str]) -> Iterator[str]:
    """A line for each case, under a heading for each kind of case: rownorm, or the provider most often measured."""
    subject = results.subject or CEILING
    found = [case_line(rows, subject, peers) for rows in cases_of(results.measured)]
    lines = [line for line in found if line is not None]
    columns = [
        (heading, cell)
        for heading, cell in COLUMNS.items()
        if any(cell(line).strip() for line in lines)
    ]
    width = max(len(_shape(line)) for line in lines) + 2
    yield f"{subject:{width}}{''.join(heading for heading, _ in columns)}".rstrip()
    for group, of_group in itertools.groupby(lines, lambda line: line.row.group):
        yield str(group)
        for line in of_group:
            cells = "".join(f"{cell(line):>{len(heading)}}" for heading, cell in columns)
            mark = "  ?" if line.row.record.suspect else ""
            yield f"  {_shape(line):{width - 2}}{cells}{mark}".rstrip()
    yield "1.20x: 1.2 times as fast"
    if any(line.row.record.suspect for line in lines):
        yield "? suspect: the records and the report give the reasons"


COLUMNS: dict[str, Callable[[CaseLine], str]] = {  # a column is as wide as its heading
    "      time": lambda line: if_known(line.row.time and line.row.time.median, duration),
    "     GB/s": lambda line: if_known(line.row.bandwidth, lambda speed: f"{speed / 1e9:,.1f}"),
    "  of ceiling": lambda line: if_known(line.row.of_ceiling, percent),
    "  of peak": lambda line: if_known(line.row.of_peak, percent),
    "  over torch": lambda line: if_known(line.over_eager, _times),
    "  over the fastest peer": lambda line: (
        f"{if_known(line.over_fastest, _times)} {line.fastest:13}"
    ),
    "      host": lambda line: if_known(line.row.host and line.row.host.median, duration),
    "  over torch's": lambda line: if_known(line.host_over_eager, _times),
}


def _shape(line: CaseLine) -> str:
    case = line.row.record.case
    return f"{case.rows}x{case.cols}" + (f" {case.name}" if case.name else "")


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"
