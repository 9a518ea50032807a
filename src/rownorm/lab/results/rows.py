"""Records to rows: the one place where medians, bandwidths, percentages and speed-ups are computed.

The terminal, the page, the plots and the analysis show fields of a ``Row``, or medians of such fields.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from ..cases.case import DIRECTIONS
from .records import CEILING, EAGER, OURS, Environment, Record
from .statistics import Ratio, Summary, paired_ratio, summarize, unpaired_ratio

DTYPE_ORDER = ("bf16", "fp16", "fp32")


class Group(NamedTuple):
    """The cases of one chart: one operation with its options, one pass, one dtype."""

    operation: str
    direction: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operation} {self.direction} {self.dtype}"


Place = tuple[Group, int, int]  # group, rows, columns


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One provider on one case, with everything that is computed from its record; None if not measured."""

    record: Record
    time: Summary | None = None  # device time of a call, seconds
    host: Summary | None = None  # host time of a call, seconds
    of_ceiling: float | None = None  # bandwidth over the ceiling's bandwidth on this case
    speedups: dict[str, Ratio] = {}  # over each other provider of this case
    tallest: bool = False  # has the most rows of its group and width
    scaling: bool = False  # its width is the one with the most row counts of the group

    @property
    def group(self) -> Group:
        return _place_of(self.record)[0]

    @property
    def provider(self) -> str:
        return self.record.provider

    @property
    def bandwidth(self) -> float | None:
        """Compulsory bytes per second."""
        return self.record.case.compulsory_bytes / self.time.median if self.time else None

    @property
    def bandwidth_between(self) -> tuple[float, float] | None:
        """The bandwidths at the 80th and the 20th percentile of the times."""
        moved = self.record.case.compulsory_bytes
        return (moved / self.time.p80, moved / self.time.p20) if self.time else None

    @property
    def of_peak(self) -> float | None:
        peak = self.record.environment.peak_bytes_per_second
        return self.bandwidth / peak if self.bandwidth and peak else None


class Results(NamedTuple):
    """All rows of one device."""

    device: str
    kind: str
    environments: list[Environment]
    rows: list[Row]
    replaced: int  # number of records replaced by a later one of the same case and provider

    @property
    def measured(self) -> list[Row]:
        return [row for row in self.rows if row.time]

    @property
    def groups(self) -> list[Group]:
        return sorted({row.group for row in self.rows}, key=_group_order)

    @property
    def providers(self) -> list[str]:
        return sorted({row.provider for row in self.rows}, key=provider_order)

    @property
    def peak(self) -> float | None:
        """The device's peak bandwidth, bytes per second."""
        peaks = [e.peak_bytes_per_second for e in self.environments if e.peak_bytes_per_second]
        return peaks[-1] if peaks else None

    @property
    def ceiling(self) -> float | None:
        """The highest bandwidth of the ceiling provider on any case, bytes per second."""
        return max(
            (row.bandwidth for row in self.measured if row.provider == CEILING and row.bandwidth),
            default=None,
        )

    @property
    def subject(self) -> str | None:
        """The provider that sentences describe: rownorm, else the most measured one, eager PyTorch last."""
        counted = Counter(row.provider for row in self.measured if row.provider != CEILING)
        return max(
            counted, key=lambda name: (name == OURS, name != EAGER, counted[name]), default=None
        )

    @property
    def baseline(self) -> str | None:
        """The default baseline of speed-ups: eager PyTorch, else the first other provider."""
        others = {row.provider for row in self.measured} - {CEILING, self.subject}
        return EAGER if EAGER in others else min(others, key=provider_order, default=None)

    def of(self, provider: str | None, group: Group | None = None) -> list[Row]:
        """The measured rows of a provider."""
        return [
            row for row in self.measured if row.provider == provider and group in (None, row.group)
        ]


def results_of(records: Iterable[Record]) -> list[Results]:
    """The results of each device, GPUs first."""
    by_device: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_device[record.environment.device].append(record)
    found = [_results_on(device, of_device) for device, of_device in by_device.items()]
    return sorted(found, key=lambda one: (one.kind == "cpu", -len(one.rows), one.device))


def provider_order(name: str) -> tuple[int, str]:
    """rownorm, eager PyTorch, the others by name, the ceiling."""
    return {OURS: 0, EAGER: 1, CEILING: 3}.get(name, 2), name


def typical(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None."""
    present = [value for value in values if value is not None]
    return median(present) if present else None


def cases_of(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """The rows of each case, by provider."""
    found: dict[Place, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        found[_place_of(row.record)][row.provider] = row
    return list(found.values())


class CaseLine(NamedTuple):
    """One provider on one case, compared with the others: its speed-up over eager PyTorch and over the fastest peer."""

    row: Row
    over_eager: float | None
    over_fastest: float | None
    fastest: str  # the name of the fastest peer
    host_over_eager: float | None


def case_line(rows: Mapping[str, Row], subject: str, peers: Sequence[str]) -> CaseLine | None:
    """The line of ``subject``. rows: those of one case, by provider. None if the subject was not measured."""
    row, eager = rows.get(subject), rows.get(EAGER)
    if row is None:
        return None
    speedups = {name: ratio.ratio for name, ratio in row.speedups.items() if name in peers}
    fastest = min(speedups, key=speedups.__getitem__, default="")
    eager_host = eager.host if eager and subject != EAGER else None
    return CaseLine(
        row=row,
        over_eager=speedups.get(EAGER),
        over_fastest=speedups.get(fastest),
        fastest=fastest,
        host_over_eager=eager_host.median / row.host.median if eager_host and row.host else None,
    )


def not_measured(records: Iterable[Record]) -> list[str]:
    """Which providers were not measured and why; each reason once."""
    reasons = Counter(
        (record.provider, record.status, record.why) for record in records if record.status != "ok"
    )
    return [
        f"{provider} {status}, {n} {'case' if n == 1 else 'cases'}: {why}"
        for (provider, status, why), n in reasons.items()
    ]


def _results_on(device: str, records: list[Record]) -> Results:
    latest = _latest(records)
    by_case: dict[Place, list[Record]] = defaultdict(list)
    for record in latest:
        by_case[_place_of(record)].append(record)
    rows = [row for of_case in by_case.values() for row in _rows_of_case(of_case)]
    environments = list(
        {msgspec.json.encode(r.environment): r.environment for r in latest}.values()
    )
    rows = sorted(_with_flags(rows), key=_row_order)
    replaced = len(records) - len(latest)
    return Results(device, latest[0].environment.kind, environments, rows, replaced)


def _latest(records: Sequence[Record]) -> list[Record]:
    """One record per case and provider: the last one, where "missing" counts as older than everything else."""
    ordered = sorted(records, key=lambda record: (record.status != "missing", record.time))
    return list({(_place_of(record), record.provider): record for record in ordered}.values())


def _place_of(record: Record) -> Place:
    """The place of a record in charts and tables. eps is not part of it, because it does not affect times."""
    case = record.case
    return Group(case.variant, case.direction, case.dtype), case.rows, case.cols


def _rows_of_case(records: list[Record]) -> list[Row]:
    """The rows of one case, one per provider."""
    timed = {r.provider: r for r in records if r.status == "ok" and _valid(r.seconds)}
    times = {provider: summarize(record.seconds) for provider, record in timed.items()}
    speedups: dict[str, dict[str, Ratio]] = defaultdict(dict)
    compared = sorted(set(timed) - {CEILING})
    for i, a in enumerate(compared):
        for b in compared[i + 1 :]:
            ratio = _time_ratio(timed[b], timed[a])
            speedups[a][b] = ratio
            speedups[b][a] = Ratio(1 / ratio.ratio, 1 / ratio.high, 1 / ratio.low)
    ceiling = timed.get(CEILING)
    return [
        Row(
            record=record,
            time=(time := times.get(record.provider)),
            host=summarize(record.host_seconds)
            if record.status == "ok" and _valid(record.host_seconds)
            else None,
            of_ceiling=_time_ratio(ceiling, record).ratio if ceiling and time else None,
            speedups=speedups[record.provider],
        )
        for record in records
    ]


def _valid(seconds: list[float]) -> bool:
    """Whether there are values and each can be a time."""
    return bool(seconds) and all(0 < value < math.inf for value in seconds)


def _time_ratio(a: Record, b: Record) -> Ratio:
    """The times of ``a`` over those of ``b``; paired by round if they were measured together."""
    together = a.run == b.run and a.case.key == b.case.key and len(a.seconds) == len(b.seconds)
    return (paired_ratio if together else unpaired_ratio)(a.seconds, b.seconds)


def _with_flags(rows: list[Row]) -> list[Row]:
    """The rows with ``tallest`` and ``scaling`` filled in."""
    tallest: dict[tuple[Group, int], int] = {}
    heights: dict[Group, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        if row.time:
            case = row.record.case
            place = row.group, case.cols
            tallest[place] = max(tallest.get(place, 0), case.rows)
            heights[row.group][case.cols].add(case.rows)
    scaling = {
        group: max(widths, key=lambda cols: (len(widths[cols]), cols))
        for group, widths in heights.items()
        if max(map(len, widths.values())) > 1
    }
    return [
        msgspec.structs.replace(
            row,
            tallest=tallest.get((row.group, row.record.case.cols)) == row.record.case.rows,
            scaling=scaling.get(row.group) == row.record.case.cols,
        )
        for row in rows
    ]


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def _group_order(group: Group) -> tuple[int, str, int, int]:
    operation = group.operation.split(" ")[0]
    return (
        _index(("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"), operation),
        group.operation,
        _index(DIRECTIONS, group.direction),
        _index(DTYPE_ORDER, group.dtype),
    )


def _row_order(row: Row) -> tuple[object, ...]:
    case = row.record.case
    return (*_group_order(row.group), case.cols, case.rows, provider_order(row.provider))
