"""What commands print at their end: tables for a terminal, from records and facts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .cases import Case
from .compare import Comparison, Outcome
from .devices import DeviceFacts
from .records import CEILING, EAGER, OURS, Record
from .statistics import paired_ratio, summarize
from .texts import binary_size, duration

if TYPE_CHECKING:
    from .check import Row


class Line(NamedTuple):
    """One case as the table of ``bench`` shows it: what the subject reached, and its speed-up over others."""

    case: Case
    seconds: float
    bytes_per_second: float
    of_ceiling: float | None
    of_peak: float | None
    over_eager: float | None
    over_fastest: float | None
    fastest: str  # of the peers
    host_seconds: float | None
    host_over_eager: float | None
    doubtful: bool


def line_of(records: Sequence[Record], subject: str, peers: Sequence[str]) -> Line | None:
    """The records of one case; None where the subject was not measured."""
    measured = {one.provider: one for one in records if one.status == "ok" and one.seconds}
    mine = measured.get(subject)
    if mine is None:
        return None
    others = [measured[name] for name in peers if name in measured and name != subject]
    fastest = min(others, key=lambda one: summarize(one.seconds).median, default=None)
    eager = measured.get(EAGER) if subject != EAGER else None
    seconds = summarize(mine.seconds).median
    speed, peak = mine.case.compulsory_bytes / seconds, mine.environment.peak_bytes_per_second
    return Line(
        case=mine.case,
        seconds=seconds,
        bytes_per_second=speed,
        of_ceiling=_over(measured.get(CEILING), mine),
        of_peak=speed / peak if peak else None,
        over_eager=_over(eager, mine),
        over_fastest=_over(fastest, mine),
        fastest=fastest.provider if fastest else "",
        host_seconds=summarize(mine.host_seconds).median if mine.host_seconds else None,
        host_over_eager=_over(eager, mine, host=True),
        doubtful=bool(mine.suspicions),
    )


def _over(other: Record | None, record: Record, host: bool = False) -> float | None:
    """The other's time over this one's, round by round where they were measured together."""
    if other is None:
        return None
    theirs, mine = (one.host_seconds if host else one.seconds for one in (other, record))
    if not theirs or not mine:
        return None
    if other.run == record.run and len(theirs) == len(mine):
        return paired_ratio(theirs, mine).ratio
    return summarize(theirs).median / summarize(mine).median


def bench_table(records: Sequence[Record], peers: Sequence[str]) -> Iterator[str]:
    """A line for each case, under a heading for each kind of case. It is about rownorm, or whoever comes first."""
    ok = [record.provider for record in records if record.status == "ok"]
    subject = OURS if OURS in ok else ok[0]
    by_case: dict[str, list[Record]] = {}
    for record in records:
        by_case.setdefault(record.case.key, []).append(record)
    found = [line_of(of_case, subject, peers) for of_case in by_case.values()]
    lines = [line for line in found if line is not None]
    columns = [
        (heading, cell)
        for heading, cell in COLUMNS.items()
        if any(cell(line).strip() for line in lines)
    ]
    width = max(len(_shape(line.case)) for line in lines) + 2
    heads = "".join(heading for heading, _ in columns)
    yield f"{subject:{width}}{heads}".rstrip()
    for kind, of_kind in itertools.groupby(lines, lambda line: line.case.kind):
        yield kind
        for line in of_kind:
            cells = "".join(f"{cell(line):>{len(heading)}}" for heading, cell in columns)
            yield f"  {_shape(line.case):{width - 2}}{cells}{'  ?' if line.doubtful else ''}".rstrip()
    yield "1.20x over somebody: 1.2 times as fast"
    if any(line.doubtful for line in lines):
        yield "? doubtful: the records and the report say why"


COLUMNS: dict[str, Callable[[Line], str]] = {  # the width of a heading is that of its column
    "      time": lambda line: duration(line.seconds),
    "     GB/s": lambda line: f"{line.bytes_per_second / 1e9:,.1f}",
    "  of ceiling": lambda line: _percent(line.of_ceiling),
    "  of peak": lambda line: _percent(line.of_peak),
    "  over torch": lambda line: _times(line.over_eager),
    "  over the fastest peer": lambda line: f"{_times(line.over_fastest)} {line.fastest:13}",
    "      host": lambda line: "" if line.host_seconds is None else duration(line.host_seconds),
    "  over torch's": lambda line: _times(line.host_over_eager),
}


def _shape(case: Case) -> str:
    return f"{case.rows}x{case.cols}" + (f" {case.name}" if case.name else "")


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


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


def check_table(rows: Iterable[Row], brief: bool = False) -> Iterator[str]:
    """Lines as the rows come, under a heading for each provider, operation and pass; ``brief``: the worst of each.

    What could not be computed is told once.
    """
    yield f"{'':2}{'dtype':7}{'data':11}{'max error':>10}{'mean error':>12}{'ulp':>7}{'of budget':>11}"
    told: set[str] = set()
    blocks = itertools.groupby(rows, lambda row: (row.provider, row.operation, row.direction))
    for (provider, operation, direction), block in blocks:
        heading = f"{provider} {operation} {direction}"
        shown: Iterable[Row] = block
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


def _check_line(row: Row) -> str:
    figures = (row.max_error, row.mean_error, row.max_ulp)
    cells = "".join(
        f"{'' if value is None else f'{value:.2g}':>{width}}"
        for value, width in zip(figures, (10, 12, 7), strict=True)
    )
    used, trouble = row.budget_used, ""
    budget = f"{used:.0f}x" if used is not None and used >= 10 else _percent(used)
    if not row.ok:
        trouble = f"  TOO LARGE: {row.why}" if row.status == "over" else f"  {row.why}"
    return f"  {row.dtype:7}{row.data:11}{cells}{budget:>11}{trouble}"
