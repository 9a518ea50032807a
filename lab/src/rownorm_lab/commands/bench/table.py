"""The table that ``rownorm bench`` prints at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...data.measurements import CaseLine, Results, case_line, cases_of, not_measured
from ...data.records import CEILING, Record
from ...data.tables import WIDTH, shape_label, wrapped
from ...data.texts import duration, if_known, percent, significant, times


def bench_table(
    results: Results, peers: Sequence[str], subject: str | None = None
) -> Iterator[str]:
    """A line for each case, under a heading for each kind of case. subject: default: that of the results."""
    subject = subject or results.subject or CEILING
    found = [case_line(rows, subject, peers) for rows in cases_of(results.measured)]
    lines = [line for line in found if line is not None]
    columns = [_column(*heading, cell, lines) for heading, cell in COLUMNS.items()]
    columns = [column for column in columns if any(column[2:])]
    # The label of a case gets what the columns leave of the line: two spaces on the left, three for a mark.
    room = WIDTH - sum(len(column[0]) for column in columns) - 5
    labels = [shape_label(line.row.record.case, max(MIN_LABEL, room)) for line in lines]
    width = max(map(len, labels))
    for label, *cells in zip((subject, ""), *(column[:2] for column in columns), strict=True):
        yield f"{label:{width + 2}}{''.join(cells)}".rstrip()
    group = None
    for line, label, *cells in zip(lines, labels, *(column[2:] for column in columns), strict=True):
        if line.row.group != group:
            group = line.row.group
            yield str(group)
        mark = "  ?" if line.row.record.suspect else ""
        yield f"  {label:{width}}{''.join(cells)}{mark}".rstrip()
    yield "1.20x: 1.2 times as fast"
    if any(line.row.record.suspect for line in lines):
        yield "? suspect: the records and the report give the reasons"


def not_in_the_table(records: Sequence[Record]) -> Iterator[str]:
    """Which providers were not measured: those that are missing in one line, the others with their reasons."""
    # rownorm info knows nothing of users' files.
    missing = [one for one in records if one.status == "missing" and one.source is None]
    for line in not_measured(one for one in records if one not in missing):
        yield from wrapped(line)
    if missing:
        names = dict.fromkeys(one.provider for one in missing)
        yield from wrapped(f"Missing: {', '.join(names)}. rownorm info says why.")


def _column(
    above: str, below: str, cell: Callable[[CaseLine], str], lines: Sequence[CaseLine]
) -> list[str]:
    """Two lines of heading, then a cell for each line, all of one width. Empty cells if no line has a value."""
    cells = [cell(line) for line in lines]
    if not any(cells):
        return ["", ""]
    cells = [above, below, *cells]
    align = "<" if below == NAMED else ">"
    width = max(map(len, cells))
    return [f"  {each:{align}{width}}" for each in cells]


MIN_LABEL = 12  # the widest shape, 16x1048576, and a little
NAMED = "fastest peer"  # the column with a provider's name
COLUMNS: dict[tuple[str, str], Callable[[CaseLine], str]] = {
    ("", "time"): lambda line: if_known(line.row.time and line.row.time.median, duration),
    ("", "GB/s"): lambda line: if_known(line.row.bandwidth, lambda it: significant(it / 1e9)),
    ("of", "ceiling"): lambda line: if_known(line.row.of_ceiling, percent),
    ("of", "peak"): lambda line: if_known(line.row.of_peak, percent),
    ("over", "torch"): lambda line: if_known(line.over_eager, _times),
    ("over the", NAMED): lambda line: if_known(
        line.over_fastest, lambda ratio: f"{_times(ratio)} {line.fastest}"
    ),
    ("host", "time"): lambda line: if_known(line.row.host and line.row.host.median, duration),
    ("over", "torch's"): lambda line: if_known(line.host_over_eager, _times),
}


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10 else times(ratio)
