"""A bar, the cases it is for, and the figures of a case that bars speak of. The bars themselves are in ``bars.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rownorm.lab.cases import DIRECTIONS, ITEMSIZE, Case
from rownorm.lab.records import CEILING, EAGER, OURS
from rownorm.lab.results import Row
from rownorm.lab.suites import SUITES
from rownorm.lab.summary import line_of

ANY = range(1, 1 << 62)
PARTIAL_SUMS = 64 << 20  # bytes that backward may use beside its results
UNITS: dict[str, Callable[[Row], float | None]] = {
    "GB/s": lambda row: row.bandwidth and row.bandwidth / 1e9,
    "µs": lambda row: row.time and 1e6 * row.time.median,
    "host µs": lambda row: row.host and 1e6 * row.host.median,
}


class Must(NamedTuple):
    """What a figure has to be, in every case of these passes, columns and rows."""

    figure: str  # of FIGURES
    sign: str  # <, <=, > or >=
    bound: float
    passes: tuple[str, ...] = DIRECTIONS
    cols: range = ANY
    rows: range = ANY

    def applies(self, case: Case) -> bool:
        return case.direction in self.passes and case.cols in self.cols and case.rows in self.rows

    @property
    def words(self) -> str:
        return f"{self.sign} {self.bound:g} {self.figure}"

    def __str__(self) -> str:
        where = [] if self.passes == DIRECTIONS else list(self.passes)
        for sizes, name in ((self.cols, "columns"), (self.rows, "rows")):
            if sizes.stop != ANY.stop:
                where.append(f"{sizes[0]} to {sizes[-1]} {name}")
            elif sizes != ANY:
                where.append(f"{sizes[0]} {name} and more")
        return ", ".join([self.words, *where])


class Part(NamedTuple):
    """Cases that are measured with the same providers and have the same bars."""

    name: str
    title: str
    suites: tuple[str, ...]
    providers: tuple[str, ...]  # beside rownorm
    unit: str  # of UNITS
    musts: tuple[Must, ...]

    @property
    def cases(self) -> list[Case]:
        return [case for suite in self.suites for case in SUITES[suite].cases()]

    @property
    def peers(self) -> list[str]:
        return [name for name in self.providers if name != CEILING]


class Missing(Exception):
    """A figure was not measured, and why."""


class Seen(NamedTuple):
    """What one run knows of a case."""

    case: Case
    part: Part
    rows: Mapping[str, Row]  # by provider
    plain: Row | None  # rownorm on the plain norm of this shape and pass

    def timed(self, name: str) -> Row:
        row = self.rows.get(name)
        if row is None:
            raise Missing(f"{name} was not measured")
        if row.time is None:
            raise Missing(f"{name} {row.record.status}: {row.record.why}")
        return row

    def value(self, name: str) -> float | None:
        """What a provider reached, in the unit of the part."""
        return UNITS[self.part.unit](self.rows[name]) if name in self.rows else None

    @property
    def over_peers(self) -> tuple[float | None, str]:
        """Our speed over that of the fastest peer, and who that is."""
        line = line_of(self.rows, OURS, self.part.peers)
        if line is None:
            return None, ""
        if self.part.unit == "host µs":
            return line.host_over_eager, EAGER if line.host_over_eager else ""
        return line.over_fastest, line.fastest


def of_fastest_peer(seen: Seen) -> float:
    """Who refuses a case, fails or is wrong cannot run it. Who is not installed was not compared."""
    here = {name for name, row in seen.rows.items() if row.record.status != "missing"}
    if absent := [name for name in seen.part.peers if name not in here]:
        raise Missing(f"not measured: {', '.join(absent)}")
    ratio, _ = seen.over_peers
    return known(ratio, "no peer was timed")


def of_ceiling(seen: Seen) -> float:
    seen.timed(CEILING)
    return known(seen.timed(OURS).of_ceiling, "no ceiling")


def speed_of(name: str) -> Callable[[Seen], float]:
    def figure(seen: Seen) -> float:
        seen.timed(name)
        return seen.timed(OURS).speedups[name].ratio

    return figure


def of_plain(seen: Seen) -> float:
    """By bandwidth: the vectors that a variant reads beside its rows are among the bytes it must move."""
    ours, plain = seen.timed(OURS).bandwidth, seen.plain.bandwidth if seen.plain else None
    return known(ours, "no time") / known(plain, "the plain norm was not measured")


def microseconds(seen: Seen) -> float:
    return known(UNITS["µs"](seen.timed(OURS)), "no time")


def of_host_cost(seen: Seen) -> float:
    ours, theirs = (UNITS["host µs"](seen.timed(name)) for name in (OURS, EAGER))
    return known(ours, "no host time") / known(theirs, "no host time")


def of_memory(seen: Seen) -> float:
    peak = seen.timed(OURS).record.peak_bytes
    return known(peak, "no peak memory") / allowed_bytes(seen.case)


def known(value: float | None, otherwise: str) -> float:
    if value is None:
        raise Missing(otherwise)
    return value


FIGURES: dict[str, Callable[[Seen], float]] = {
    "of the fastest peer": of_fastest_peer,
    "of the ceiling": of_ceiling,
    "of the plain norm": of_plain,
    "of torch's speed": speed_of(EAGER),
    "of torch.compile's speed": speed_of("torch.compile"),
    "microseconds": microseconds,
    "of torch's host cost": of_host_cost,
    "of the memory allowed": of_memory,
}


def allowed_bytes(case: Case) -> int:
    """Forward: y [, h] and the statistics. Backward: dx [, dresidual], gradients of parameters, partial sums.

    Each tensor counts as PyTorch's allocator may count it: in whole blocks of 512 bytes; and above 1 MiB, up to 1 MiB
    more, because a block is not split for a rest as small as that.
    """
    elements, size = case.rows * case.cols, ITEMSIZE[case.dtype]
    rows = [elements * size]
    if case.adds:
        rows.append(elements * ITEMSIZE[case.residual_dtype or case.dtype])
    statistics = [4 * case.rows] * (2 if case.centers else 1)
    parameters = 1 + case.has_bias + case.pre_bias
    gradients = [case.cols * size] * parameters
    forward = sum(map(_counted, rows + statistics))
    # The partial sums are a tensor for each parameter, and one for what the parts of a row tell each other.
    backward = sum(map(_counted, rows + gradients)) + PARTIAL_SUMS + (parameters + 1) * _UNSPLIT
    return {"forward": forward, "backward": backward, "both": forward + backward}[case.direction]


_BLOCK, _UNSPLIT = 512, 1 << 20


def _counted(size: int) -> int:
    whole = -(-size // _BLOCK) * _BLOCK
    return whole + (_UNSPLIT if whole > _UNSPLIT else 0)
