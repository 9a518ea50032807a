"""What commands print at their end: tables for a terminal, from records and facts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .compare import Comparison, Outcome
from .devices import DeviceFacts
from .records import CEILING, EAGER, Record
from .results import Results, Row, cases_of
from .texts import binary_size, duration, if_known, percent

if TYPE_CHECKING:
    from .check import Row as Checked


class Line(NamedTuple):
    """One case as the table of ``bench`` shows it: what a provider reached, and its speed-up over others."""

    row: Row
    over_eager: float | None
    over_fastest: float | None
    fastest: str  # of the peers
    host_over_eager: float | None


def line_of(rows: Mapping[str, Row], subject: str, peers: Sequence[str]) -> Line | None:
    """The rows of one case by provider; None where the subject was not measured."""
    row, eager = rows.get(subject), rows.get(EAGER)
    if row is None:
        return None
    over = {name: ratio.ratio for name, ratio in row.speedups.items() if name in peers}
    fastest = min(over, key=over.__getitem__, default="")
    theirs = eager.host if eager and subject != EAGER else None
    return Line(
        row=row,
        over_eager=over.get(EAGER),
        over_fastest=over.get(fastest),
        fastest=fastest,
        host_over_eager=theirs.median / row.host.median if theirs and row.host else None,
    )


def bench_table(results: Results, peers: Sequence[str]) -> Iterator[str]:
    """A line for each case, under a heading for each kind of case. It is about rownorm, or whoever there is."""
    subject = results.subject or CEILING
    found = [line_of(rows, subject, peers) for rows in cases_of(results.measured)]
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
            doubt = "  ?" if line.row.record.suspicions else ""
            yield f"  {_shape(line):{width - 2}}{cells}{doubt}".rstrip()
    yield "1.20x over somebody: 1.2 times as fast"
    if any(line.row.record.suspicions for line in lines):
        yield "? doubtful: the records and the report say why"


COLUMNS: dict[str, Callable[[Line], str]] = {  # the width of a heading is that of its column
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


def _shape(line: Line) -> str:
    case = line.row.record.case
    return f"{case.rows}x{case.cols}" + (f" {case.name}" if case.name else "")


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def _percent(part: float | None) -> str:
    return "" if part is None else f"{part:.0%}"


def not_measured(records: Iterable[Record]) -> list[str]:
    """Who was not measured and why, each reason once."""
    reasons = Counter(
        (record.provider, record.status, record.why) for record in records if record.status != "ok"
    )
    return [
        f"{provider} {status}, {n} {'case' if n == 1 else 'cases'}: {why}"
        for (provider, status, why), n in reasons.items()
    ]


def device_lines(device: DeviceFacts) -> list[str]:
    """What ``info`` says of a device."""
    peak = device.peak_bytes_per_second
    lines = [
        f"{device.name} ({device.kind}, {device.arch})",
        f"memory  {binary_size(device.memory_bytes)}",
    ]
    if device.kind == "cpu":
        return [*lines, f"cache   {binary_size(device.l2_bytes)}, the last level"]
    known = f"{peak / 1e9:,.0f} GB/s" if peak else "unknown"
    return [
        *lines,
        f"peak    {known} ({device.peak_source})" if peak else f"peak    {device.peak_source}",
        f"L2      {binary_size(device.l2_bytes)}",
        f"SMs     {device.sms or 'unknown'}",
    ]


def compare_table(outcome: Outcome) -> Iterator[str]:
    """A line for each case that both sets have."""
    width = max(len(one.case.title) for one in outcome.comparisons)
    yield f"{'':{width}}  {'provider':14}{'new / base':>11}   {'95 % interval':16} verdict"
    for one in outcome.comparisons:
        interval = f"{one.ratio.low:.3f} to {one.ratio.high:.3f}"
        yield (
            f"{one.case.title:{width}}  {one.provider:14}{one.ratio.ratio:>11.3f}   {interval:16} "
            f"{one.verdict}"
        )


def counts(comparisons: Sequence[Comparison]) -> str:
    """How many are faster, the same, slower and unclear."""
    counted = Counter(one.verdict for one in comparisons)
    return ", ".join(f"{counted[name]} {name}" for name in ("faster", "same", "slower", "unclear"))


def measure_of(comparisons: Sequence[Comparison]) -> str:
    """What was compared."""
    relative = sum(one.by_ceiling for one in comparisons)
    if relative == 0:
        return "times"
    others = len(comparisons) - relative
    return "times relative to the ceiling of their round" + (
        f", {others} by times" if others else ""
    )


def check_table(rows: Iterable[Checked], brief: bool = False) -> Iterator[str]:
    """Lines as the rows come, under a heading for each provider, operation and pass; ``brief``: the worst of each.

    What could not be computed is told once.
    """
    yield f"{'':2}{'dtype':7}{'data':11}{'max error':>10}{'mean error':>12}{'ulp':>9}{'of budget':>11}"
    told: set[str] = set()
    blocks = itertools.groupby(rows, lambda row: (row.provider, row.operation, row.direction))
    for (provider, operation, direction), block in blocks:
        heading = f"{provider} {operation} {direction}"
        shown: Iterable[Checked] = block
        if brief:
            shown = [max(block, key=lambda row: (not row.ok, row.budget_used or 0.0))]
        for row in shown:
            if row.max_error is None and row.ok:
                who = provider if row.status == "missing" else heading
                line = f"{who}: {row.status}: {row.why}"
            else:
                line = heading
                heading = heading if brief else ""
            if line and line not in told:
                told.add(line)
                yield line
            if row.max_error is not None or not row.ok:
                yield _check_line(row)


def _check_line(row: Checked) -> str:
    figures = (row.max_error, row.mean_error, row.max_ulp)
    cells = "".join(
        f"{'' if value is None else f'{value:.2g}':>{width}}"
        for value, width in zip(figures, (10, 12, 9), strict=True)
    )
    used, trouble = row.budget_used, ""
    budget = f"{used:.0f}x" if used is not None and used >= 10 else _percent(used)
    if not row.ok:
        trouble = f"  TOO LARGE: {row.why}" if row.status == "over" else f"  {row.why}"
    return f"  {row.dtype:7}{row.data:11}{cells}{budget:>11}{trouble}"
