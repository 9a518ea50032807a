"""What commands print at their end: tables for a terminal, from records and facts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .cases import Case
from .compare import CEILING, Comparison, Outcome
from .devices import DeviceFacts
from .records import Record
from .statistics import paired_ratio, summarize

if TYPE_CHECKING:
    from .check import Row


class Line(NamedTuple):
    """One provider on one case, as the table of ``bench`` shows it."""

    provider: str
    seconds: float
    spread: float
    bytes_per_second: float
    of_ceiling: float | None
    of_peak: float | None
    speed_up: float | None  # the fastest peer's time over this one's, paired
    suspicions: list[str]


def lines_of(records: Sequence[Record], peers: Sequence[str]) -> list[Line]:
    """The measured records of one case, fastest first, the ceiling last."""
    measured = [record for record in records if record.status == "ok" and record.seconds]
    medians = {record.provider: summarize(record.seconds).median for record in measured}
    by_provider = {record.provider: record for record in measured}
    fastest = min((name for name in peers if name in medians), key=medians.__getitem__, default="")
    lines = []
    for record in measured:
        summary = summarize(record.seconds)
        speed = record.case.compulsory_bytes / summary.median
        peak = record.environment.peak_bytes_per_second
        lines.append(
            Line(
                provider=record.provider,
                seconds=summary.median,
                spread=summary.spread,
                bytes_per_second=speed,
                of_ceiling=_paired(by_provider.get(CEILING), record),
                of_peak=speed / peak if peak else None,
                speed_up=None
                if record.provider == CEILING
                else _paired(by_provider.get(fastest), record),
                suspicions=record.suspicions,
            )
        )
    return sorted(lines, key=lambda line: (line.provider == CEILING, line.seconds))


def _paired(other: Record | None, record: Record) -> float | None:
    """The other's time over this one's."""
    if other is None:
        return None
    if other.run == record.run and len(other.seconds) == len(record.seconds):
        return paired_ratio(other.seconds, record.seconds, draws=1).ratio
    return summarize(other.seconds).median / summarize(record.seconds).median


def bench_table(records: Sequence[Record], peers: Sequence[str]) -> Iterator[str]:
    """A block of lines for each case."""
    by_case: dict[str, list[Record]] = {}
    for record in records:
        by_case.setdefault(record.case.key, []).append(record)
    has_peak = any(record.environment.peak_bytes_per_second for record in records)
    peak = "of peak" if has_peak else ""
    yield f"{'':16}{'time':>9}{'spread':>8}{'GB/s':>9}{'of ceiling':>12}{peak:>9}{'vs fastest peer':>17}"
    doubtful = False
    for of_case in by_case.values():
        lines = lines_of(of_case, peers)
        if lines:
            yield title(of_case[0].case)
        for line in lines:
            speed_up = f"{line.speed_up:.2f}x" if line.speed_up else ""
            doubtful |= bool(line.suspicions)
            yield (
                f"  {line.provider:14}{duration(line.seconds):>9}{line.spread:>8.0%}"
                f"{line.bytes_per_second / 1e9:>9,.1f}{_percent(line.of_ceiling):>12}"
                f"{_percent(line.of_peak):>9}{speed_up:>17}{'  ?' if line.suspicions else ''}"
            ).rstrip()
    if doubtful:
        yield "? doubtful: the records and the report say why"


def title(case: Case) -> str:
    """A case for people."""
    name = f"  ({case.name})" if case.name else ""
    return f"{case.variant} {case.direction} {case.dtype} {case.rows}x{case.cols}{name}"


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


def duration(seconds: float) -> str:
    """A time with three digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def size(count: int | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return "unknown"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count / 1024:.4g} KiB"


def device_lines(device: DeviceFacts) -> list[str]:
    """What ``info`` says of a device."""
    peak = device.peak_bytes_per_second
    lines = [
        f"{device.name} ({device.kind}, {device.arch})",
        f"memory  {size(device.memory_bytes)}",
    ]
    if device.kind == "cpu":
        return [*lines, f"cache   {size(device.l2_bytes)}, the last level"]
    known = f"{peak / 1e9:,.0f} GB/s" if peak else "unknown"
    return [
        *lines,
        f"peak    {known} ({device.peak_source})" if peak else f"peak    {device.peak_source}",
        f"L2      {size(device.l2_bytes)}",
        f"SMs     {device.sms or 'unknown'}",
    ]


def compare_table(outcome: Outcome) -> Iterator[str]:
    """A line for each case that both sets have."""
    width = max(len(title(one.case)) for one in outcome.comparisons)
    yield f"{'':{width}}  {'provider':14}{'new / base':>11}   {'95 % interval':16} verdict"
    for one in outcome.comparisons:
        interval = f"{one.ratio.low:.3f} to {one.ratio.high:.3f}"
        yield (
            f"{title(one.case):{width}}  {one.provider:14}{one.ratio.ratio:>11.3f}   {interval:16} "
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
