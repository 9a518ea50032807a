"""Records to measurements: the one place where medians, bandwidths, percentages and speed-ups are computed.

The terminal, the page, the plots and the analysis show fields of a ``Measurement``, or medians of such fields.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

import msgspec

from .case import DIRECTIONS
from .latest import Unused, latest, mixed_text, unused_texts
from .records import CEILING, EAGER, INVARIANT, OURS, Environment, Record
from .statistics import Ratio, Summary, ratio_of_times, summarize

DTYPE_ORDER = ("bf16", "fp16", "fp32")


class Group(NamedTuple):
    """The cases of one chart: one operation with its options, one pass, one dtype."""

    operation: str
    direction: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operation} {self.direction} {self.dtype}"


Place = tuple[Group, int, int]  # group, rows, columns


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One provider on one case, with everything that is computed from its record; None if not measured."""

    record: Record
    group: Group
    time: Summary | None = None  # device time of a call, seconds
    host: Summary | None = None  # host time of a call, seconds
    bandwidth: float | None = None  # compulsory bytes per second
    bandwidth_between: tuple[float, float] | None = None  # at the 80th and the 20th percentile
    of_ceiling: float | None = None  # bandwidth over the ceiling's bandwidth on this case
    of_peak: float | None = None  # bandwidth over the device's peak
    speedups: dict[str, Ratio] = {}  # over each other provider of this case
    tallest: bool = False  # has the most rows of its group and width
    scaling: bool = False  # its width is the one with the most row counts of the group

    @property
    def provider(self) -> str:
        return self.record.provider


@dataclass(frozen=True)
class Results:
    """All rows of one device. What is derived from them is computed once, when it is first read."""

    device: str
    kind: str
    environments: list[Environment]
    rows: list[Measurement]
    unused: list[Unused]  # records with a newer one of the same case and provider

    @cached_property
    def measured(self) -> list[Measurement]:
        """The rows that have a time."""
        return [row for row in self.rows if row.time]

    @cached_property
    def notes(self) -> list[str]:
        """Which records are not used, and how many cases combine runs; each in a sentence."""
        cases = [[row.record for row in of.values()] for of in cases_of(self.measured)]
        return [*unused_texts(self.unused), *filter(None, [mixed_text(cases)])]

    @cached_property
    def groups(self) -> list[Group]:
        return sorted({row.group for row in self.rows}, key=_group_order)

    @cached_property
    def providers(self) -> list[str]:
        return sorted({row.provider for row in self.rows}, key=provider_order)

    @cached_property
    def peak(self) -> float | None:
        """The device's peak bandwidth, bytes per second."""
        peaks = [e.peak_bytes_per_second for e in self.environments if e.peak_bytes_per_second]
        return peaks[-1] if peaks else None

    @cached_property
    def ceiling(self) -> float | None:
        """The highest bandwidth of the ceiling provider on any case, bytes per second."""
        return max((row.bandwidth for row in self.of(CEILING) if row.bandwidth), default=None)

    @cached_property
    def subject(self) -> str | None:
        """The provider that sentences describe: a user's own, rownorm, or the most measured; eager PyTorch last."""
        counted = {name: len(self.of(name)) for name in self._timed_providers}
        own = self.own
        return max(
            counted,
            key=lambda name: (name in own, name == OURS, name != EAGER, counted[name]),
            default=None,
        )

    @cached_property
    def own(self) -> list[str]:
        """The measured providers that come from users' files."""
        return list(dict.fromkeys(r.provider for r in self.measured if r.record.source is not None))

    @cached_property
    def subjects(self) -> list[str]:
        """The providers that the tables of a terminal are about: users' own and rownorm, else one of the others."""
        if not self.measured:
            return []
        ours = [OURS] if self.of(OURS) else []
        return [*self.own, *ours] or [self.subject or CEILING]

    @cached_property
    def baseline(self) -> str | None:
        """The default baseline of speed-ups: eager PyTorch, else the first other provider."""
        others = [name for name in self._timed_providers if name != self.subject]
        return others[0] if others else None

    def of(self, provider: str | None, group: Group | None = None) -> list[Measurement]:
        """The measured rows of a provider, in one group or in all."""
        return self._by_provider.get((provider, group), [])

    @cached_property
    def _timed_providers(self) -> list[str]:
        """The providers with a time in any case, without the ceiling, in the usual order."""
        return [name for name in self.providers if name != CEILING and self.of(name)]

    @cached_property
    def _by_provider(self) -> dict[tuple[str | None, Group | None], list[Measurement]]:
        """The measured rows of each provider, for each group and for all of them (None)."""
        found: dict[tuple[str | None, Group | None], list[Measurement]] = defaultdict(list)
        for row in self.measured:
            found[row.provider, None].append(row)
            found[row.provider, row.group].append(row)
        return dict(found)


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


def fastest_other(row: Measurement) -> str | None:
    """The fastest other provider on the case of a row, without the ceiling; None if there is none."""
    others = [name for name in row.speedups if name != INVARIANT]
    return min(others, key=lambda name: row.speedups[name].ratio, default=None)


def cases_of(rows: Iterable[Measurement]) -> list[dict[str, Measurement]]:
    """The rows of each case, by provider."""
    found: dict[Place, dict[str, Measurement]] = defaultdict(dict)
    for row in rows:
        case = row.record.case
        found[row.group, case.rows, case.cols][row.provider] = row
    return list(found.values())


class CaseLine(NamedTuple):
    """One provider on one case, compared with the others: its speed-up over eager PyTorch and over the fastest peer."""

    row: Measurement
    over_eager: float | None
    over_fastest: float | None
    fastest: str  # the name of the fastest peer
    host_over_eager: float | None


def case_line(
    rows: Mapping[str, Measurement], subject: str, peers: Sequence[str]
) -> CaseLine | None:
    """The line of ``subject``. rows: those of one case, by provider. None if the subject was not measured."""
    row, eager = rows.get(subject), rows.get(EAGER)
    if row is None:
        return None
    speedups = {name: ratio.ratio for name, ratio in row.speedups.items() if name in peers}
    fastest = min(speedups, key=speedups.__getitem__, default="")
    both = eager and eager.host and row.host and subject != EAGER
    return CaseLine(
        row=row,
        over_eager=speedups.get(EAGER),
        over_fastest=speedups.get(fastest),
        fastest=fastest,
        host_over_eager=host_ratio(eager.record, row.record).ratio if eager and both else None,
    )


def host_ratio(a: Record, b: Record) -> Ratio:
    """The host times of ``a`` over those of ``b``, which have some; paired as the times of the device are."""
    return _time_ratio(a, b, a.host_seconds, b.host_seconds)


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
    used, unused = latest(((_place_of(record), record.provider), record) for record in records)
    by_case: dict[Place, list[Record]] = defaultdict(list)
    for (place, _), record in used.items():
        by_case[place].append(record)
    rows = [row for place, of_case in by_case.items() for row in _rows_of_case(place, of_case)]
    # Records of a file share their environment, so most are the same object.
    distinct = {id(record.environment): record.environment for record in used.values()}.values()
    environments = list({msgspec.json.encode(one): one for one in distinct}.values())
    rows = sorted(_with_flags(rows), key=_row_order)
    return Results(device, environments[0].kind, environments, rows, unused)


def _place_of(record: Record) -> Place:
    """The place of a record in charts and tables. eps is not part of it, because it does not affect times."""
    case = record.case
    return Group(case.variant, case.direction, case.dtype), case.rows, case.cols


def _rows_of_case(place: Place, records: list[Record]) -> list[Measurement]:
    """The rows of one case, one per provider."""
    timed = {r.provider: r for r in records if r.status == "ok" and _valid(r.seconds)}
    speedups: dict[str, dict[str, Ratio]] = defaultdict(dict)
    compared = sorted(set(timed) - {CEILING})
    for i, a in enumerate(compared):
        for b in compared[i + 1 :]:
            ratio = _time_ratio(timed[b], timed[a])
            speedups[a][b] = ratio
            speedups[b][a] = Ratio(1 / ratio.ratio, 1 / ratio.high, 1 / ratio.low)
    ceiling = timed.get(CEILING)
    return [
        _row(place[0], record, speedups.get(record.provider, {}), ceiling, record.provider in timed)
        for record in records
    ]


def _row(
    group: Group,
    record: Record,
    speedups: dict[str, Ratio],
    ceiling: Record | None,
    timed: bool,
) -> Measurement:
    """The row of a record; without a time it has no bandwidth."""
    host = None
    if record.status == "ok" and _valid(record.host_seconds):
        host = summarize(record.host_seconds)
    if not timed:
        return Measurement(record=record, group=group, host=host)
    time, moved = summarize(record.seconds), record.case.compulsory_bytes
    peak = record.environment.peak_bytes_per_second
    return Measurement(
        record=record,
        group=group,
        time=time,
        host=host,
        bandwidth=moved / time.median,
        bandwidth_between=(moved / time.p80, moved / time.p20),
        of_ceiling=_time_ratio(ceiling, record).ratio if ceiling else None,
        of_peak=moved / time.median / peak if peak else None,
        speedups=speedups,
    )


def _valid(seconds: list[float]) -> bool:
    """Whether there are values and each can be a time."""
    return bool(seconds) and all(0 < value < math.inf for value in seconds)


def _time_ratio(
    a: Record, b: Record, of_a: list[float] | None = None, of_b: list[float] | None = None
) -> Ratio:
    """The median time of ``a`` over that of ``b``; its interval is paired by round if they were measured together."""
    of_a, of_b = of_a or a.seconds, of_b or b.seconds
    together = a.run == b.run and a.case.key == b.case.key and len(of_a) == len(of_b)
    return ratio_of_times(of_a, of_b, paired=together)


def _with_flags(rows: list[Measurement]) -> list[Measurement]:
    """The rows with ``tallest`` and ``scaling`` filled in."""
    heights: dict[Group, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        if row.time:
            heights[row.group][row.record.case.cols].add(row.record.case.rows)
    tallest = {
        (group, cols, max(of_width))
        for group, widths in heights.items()
        for cols, of_width in widths.items()
    }
    scaling = {
        (group, max(widths, key=lambda cols: (len(widths[cols]), cols)))
        for group, widths in heights.items()
        if max(map(len, widths.values())) > 1
    }
    return [
        msgspec.structs.replace(
            row,
            tallest=(row.group, row.record.case.cols, row.record.case.rows) in tallest,
            scaling=(row.group, row.record.case.cols) in scaling,
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


def _row_order(row: Measurement) -> tuple[object, ...]:
    case = row.record.case
    return (*_group_order(row.group), case.cols, case.rows, provider_order(row.provider))
