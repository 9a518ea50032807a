"""What a bar is, and how the figures of a case are computed. The bars themselves are in ``bars.py``."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from ...data.case import DIRECTIONS, ITEMSIZE, Case
from ...data.measurements import Measurement, case_line, host_ratio
from ...data.records import CEILING, EAGER, OURS
from ...data.suites import SIZES, SUITES
from . import draw, settings

Job = tuple[Case, tuple[str, ...]]  # a case and its providers

ANY = range(1, 1 << 62)
PASS_LABELS = {"forward": "forward", "backward": "backward", "both": "forward and backward"}
# Bytes that backward may allocate besides its results: ``planning.capacity.PARTIAL_SUM_BYTES``. Repeated on purpose: a
# bar must not change with the code that it judges, and importing that module would import Triton.
PARTIAL_SUMS = 64 << 20
OF_PLAIN = "of the plain norm"
OF_LARGE = "of the share with 2^28 elements"
OF_PLAIN_HOST = "of the plain norm's host cost"
OF_COMPILED = "of torch.compile's speed"
UNITS: dict[str, Callable[[Measurement], float | None]] = {
    "GB/s": lambda row: row.bandwidth and row.bandwidth / 1e9,
    "µs": lambda row: row.time and 1e6 * row.time.median,
    "ms": lambda row: row.time and 1e3 * row.time.median,
    "host µs": lambda row: row.host and 1e6 * row.host.median,
}
OF_TORCH = "of torch's speed"
WITH_ADD = "of torch's speed, add"  # training steps with rownorm's residual add

ROWS = 512  # of the first calls
OTHER_ROWS = (1, 7, 300, 5000)  # of later calls

SIGNS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "<": ("less than", operator.lt),
    "<=": ("at most", operator.le),
    ">": ("more than", operator.gt),
    ">=": ("at least", operator.ge),
}


class Bar(NamedTuple):
    """What a figure must be, in every case with these passes, columns, rows, elements and setting."""

    figure: str  # a key of FIGURES
    sign: str  # a key of SIGNS
    bound: float
    passes: tuple[str, ...] = DIRECTIONS
    cols: range = ANY
    rows: range = ANY
    elements: int = 0  # 0: any
    setting: str = ""  # empty: any

    @property
    def subject(self) -> str:
        """The provider that it is about."""
        return settings.ADD if self.figure == WITH_ADD else OURS

    def applies(self, case: Case) -> bool:
        is_chosen = case.setting == self.setting or not self.setting
        shape = case.cols in self.cols and case.rows in self.rows
        size = self.elements in (0, case.rows * case.cols)
        return case.direction in self.passes and shape and size and is_chosen

    def holds(self, figure: float) -> bool:
        return SIGNS[self.sign][1](figure, self.bound)

    @property
    def limit(self) -> str:
        """``at least 0.97``."""
        return f"{SIGNS[self.sign][0]} {self.bound:g}"

    def __str__(self) -> str:
        """``at least 0.7 of the ceiling, backward, 16385 columns and more``."""
        where = [] if self.passes == DIRECTIONS else [PASS_LABELS[name] for name in self.passes]
        for sizes, name in ((self.cols, "column"), (self.rows, "row")):
            if sizes.stop == ANY.stop:
                where += [] if sizes == ANY else [f"{sizes[0]} {name}s and more"]
            elif len(sizes) == 1:
                where.append(f"{sizes[0]} {name}" + ("" if sizes[0] == 1 else "s"))
            else:
                where.append(f"{sizes[0]} to {sizes[-1]} {name}s")
        where += [f"2^{self.elements.bit_length() - 1} elements"] if self.elements else []
        where += filter(None, [self.setting])
        return ", ".join([f"{self.limit} {self.figure}", *where])


class FirstCall(msgspec.Struct, frozen=True, kw_only=True):
    """One operation at one width: the names of the kernels that each step of ``first_call`` compiled."""

    operation: str
    cols: int
    dtype: str = "bf16"
    rows: int = ROWS
    other_rows: tuple[int, ...] = OTHER_ROWS
    compiled: dict[str, list[str]]
    device: str = ""


class FirstCallBar(NamedTuple):
    """How many kernels each step of ``first_call`` may compile."""

    name: str
    operations: tuple[str, ...]
    cols: tuple[int, ...]
    most: dict[str, int]

    @property
    def calls(self) -> list[tuple[str, int]]:
        """Every (operation, columns)."""
        return list(itertools.product(self.operations, self.cols))


class Part(NamedTuple):
    """Cases that have the same providers and the same bars."""

    name: str
    title: str
    suites: tuple[str, ...]  # of ``data.suites``; empty: the cases are in ``settings`` or ``draw``
    providers: tuple[str, ...]  # besides rownorm
    unit: str  # a key of UNITS
    bars: tuple[Bar, ...]
    note: str = ""  # how cases in a setting are measured, or drawn
    is_trial: bool = False  # measured, not judged
    seed: int | None = None  # of a drawn part; None: nothing is drawn

    @property
    def cases(self) -> list[Case]:
        if self.is_drawn:
            return [] if self.seed is None else draw.cases(self.seed, self.is_trial)
        if self.has_settings:
            return settings.CASES[self.name](self.is_trial)
        return [case for suite in self.suites for case in SUITES[suite].cases()]

    @property
    def has_settings(self) -> bool:
        """Whether its cases are measured in a setting, in turns."""
        return self.name in settings.CASES

    @property
    def is_drawn(self) -> bool:
        """Whether its cases depend on the seed of a run."""
        return self.name == draw.PART

    def of_seed(self, seed: int | None) -> Part:
        """The part in a run of this seed."""
        return self._replace(seed=seed) if self.is_drawn else self

    @property
    def has_trial(self) -> bool:
        """Whether there are tiny cases of it. Its own need a GPU."""
        return self.has_settings or self.is_drawn

    @property
    def tiny(self) -> Part:
        """Its trial."""
        return self._replace(is_trial=True)

    @property
    def page(self) -> str:
        """The name of its published page."""
        return f"study-{self.name}" if self.has_settings else self.name

    def judges(self, figure: str) -> bool:
        """Whether one of its bars is about this figure."""
        return any(bar.figure == figure for bar in self.bars)

    @property
    def peers(self) -> list[str]:
        return [name for name in self.providers if name not in (CEILING, *settings.OWN_PROVIDERS)]


class Missing(Exception):
    """A figure is not known; the message is the reason."""


class MeasuredCase(NamedTuple):
    """One case of a part, as one run measured it."""

    case: Case
    part: Part
    rows: Mapping[str, Measurement]  # by provider
    plain: Measurement | None  # rownorm on the plain norm of this shape and pass
    large: Measurement | None  # rownorm on the same norm of the largest of SIZES

    @property
    def title(self) -> str:
        """The case in one line; of a drawn part with the seed, because another run has other cases."""
        seed = self.part.seed
        return self.case.title if seed is None else f"{self.case.title}, seed {seed}"

    def timed(self, name: str) -> Measurement:
        """The row of a provider that has a time, of the device or of the host; raises Missing."""
        row = self.rows.get(name)
        if row is None:
            raise Missing(f"{name} was not measured")
        if row.time is None and row.host is None:
            raise Missing(f"{name} {row.record.status}: {row.record.why}")
        return row

    def value(self, name: str) -> float | None:
        """What a provider reached, in the unit of the part."""
        return UNITS[self.part.unit](self.rows[name]) if name in self.rows else None

    @property
    def over_peers(self) -> tuple[float | None, str]:
        """rownorm's speed over that of the fastest peer, and the name of that peer."""
        line = case_line(self.rows, OURS, self.part.peers)
        if line is None:
            return None, ""
        if self.part.unit == "host µs":
            return line.host_over_eager, EAGER if line.host_over_eager else ""
        return line.over_fastest, line.fastest


def of_fastest_peer(measured: MeasuredCase) -> float:
    """rownorm's speed over that of the fastest peer.

    Peers that refuse the case, fail or are wrong do not count. A peer that is not installed makes it Missing.
    """
    here = {name for name, row in measured.rows.items() if row.record.status != "missing"}
    if absent := [name for name in measured.part.peers if name not in here]:
        raise Missing(f"not measured: {', '.join(absent)}")
    ratio, _ = measured.over_peers
    return known(ratio, "no peer was timed")


def of_ceiling(measured: MeasuredCase) -> float:
    """rownorm's bandwidth over the ceiling's."""
    measured.timed(CEILING)
    return known(measured.timed(OURS).of_ceiling, "no ceiling")


def speed_of(name: str, ours: str = OURS) -> Callable[[MeasuredCase], float]:
    """The figure: the speed of ``ours`` over that of the provider ``name``."""

    def figure(measured: MeasuredCase) -> float:
        measured.timed(name)
        return measured.timed(ours).speedups[name].ratio

    return figure


def of_plain(measured: MeasuredCase) -> float:
    """rownorm's bandwidth over its bandwidth on the plain norm. Bytes that options read count as compulsory."""
    ours = known(measured.timed(OURS).bandwidth, "no time")
    plain = measured.plain.bandwidth if measured.plain else None
    return ours / known(plain, "the plain norm was not measured")


def of_large(measured: MeasuredCase) -> float:
    """rownorm's share of the ceiling over its share with more rows: what fixed costs leave."""
    large = measured.large.of_ceiling if measured.large else None
    return of_ceiling(measured) / known(large, "2^28 elements were not measured")


def microseconds(measured: MeasuredCase) -> float:
    """rownorm's device time of a call."""
    return known(UNITS["µs"](measured.timed(OURS)), "no time")


def of_host_cost(name: str) -> Callable[[MeasuredCase], float]:
    """The figure: rownorm's host time over that of the provider ``name``, measured in turns."""

    def figure(measured: MeasuredCase) -> float:
        ours, theirs = measured.timed(OURS), measured.timed(name)
        if not (ours.host and theirs.host):
            raise Missing("no host time")
        return host_ratio(ours.record, theirs.record).ratio

    return figure


def of_memory(measured: MeasuredCase) -> float:
    """rownorm's peak memory over ``allowed_bytes``."""
    peak = measured.timed(OURS).record.peak_bytes
    return known(peak, "no peak memory") / allowed_bytes(measured.case)


def known(value: float | None, otherwise: str) -> float:
    """The value; Missing with the reason ``otherwise`` if it is None."""
    if value is None:
        raise Missing(otherwise)
    return value


FIGURES: dict[str, Callable[[MeasuredCase], float]] = {
    "of the fastest peer": of_fastest_peer,
    "of the ceiling": of_ceiling,
    OF_PLAIN: of_plain,
    OF_LARGE: of_large,
    OF_PLAIN_HOST: of_host_cost(settings.PLAIN),
    OF_TORCH: speed_of(EAGER),
    WITH_ADD: speed_of(EAGER, settings.ADD),
    OF_COMPILED: speed_of("torch.compile"),
    "microseconds": microseconds,
    "of torch's host cost": of_host_cost(EAGER),
    "of the memory allowed": of_memory,
}


def plain_of(case: Case) -> Case:
    """The same shape and pass with a weight, and without the other options."""
    return Case(
        operation=case.operation,
        direction=case.direction,
        rows=case.rows,
        cols=case.cols,
        dtype=case.dtype,
        residual_dtype=case.residual_dtype,
        eps=case.eps,
    )


def large_of(case: Case) -> Case:
    """The same norm and pass with the rows of the largest of SIZES."""
    return msgspec.structs.replace(case, rows=SIZES[-1] // case.cols)


def allowed_bytes(case: Case) -> int:
    """Forward: y [, h] and the statistics. Backward: dx [, dresidual], gradients of parameters, partial sums.

    Each tensor is counted as PyTorch's allocator may count it: rounded up to 512 bytes; above 1 MiB, up to 1 MiB more,
    because the allocator does not split off a smaller remainder.
    """
    elements, size = case.rows * case.cols, ITEMSIZE[case.dtype]
    rows = [elements * size]
    if case.adds:
        rows.append(elements * ITEMSIZE[case.residual_dtype or case.dtype])
    statistics = [4 * case.rows] * (2 if case.centers else 1)
    parameters = 1 + case.has_bias + case.pre_bias
    gradients = [case.cols * size] * parameters
    forward = sum(map(_counted, rows + statistics))
    # The partial sums are one tensor per parameter, plus one that the parts of a row use to exchange statistics.
    backward = sum(map(_counted, rows + gradients)) + PARTIAL_SUMS + (parameters + 1) * _UNSPLIT
    return {"forward": forward, "backward": backward, "both": forward + backward}[case.direction]


# Of PyTorch's allocator: sizes are multiples of _BLOCK, and a remainder of up to _UNSPLIT bytes is not split off.
_BLOCK, _UNSPLIT = 512, 1 << 20


def _counted(size: int) -> int:
    whole = -(-size // _BLOCK) * _BLOCK
    return whole + (_UNSPLIT if whole > _UNSPLIT else 0)
