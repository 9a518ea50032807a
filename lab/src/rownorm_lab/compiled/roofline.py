"""Bytes that a kernel moves to and from memory, and the time that they take at best.

What is assumed: caches are cold when a kernel starts, and every tensor it touches comes from memory once. A row that a
kernel loads a second time comes from L2 if all such rows that are being worked on fit in half of L2, else from memory.
Parameters are loaded by every program and stay in L2. The time is the longest of

    bandwidth   the bytes over a ceiling
    latency     the bytes over what is in flight during one access: ``LATENCY`` to memory, ``L2_LATENCY`` for a reload
    launch      ``SHORTEST_CALL`` for each kernel
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rownorm.inside import TARGETS, Target

from ..data.case import DTYPES, Case
from ..data.published import Published, read_published
from ..data.records import CEILING
from ..device.database import Known, database
from ..device.facts import describe
from ..measure.timing import SHORTEST_CALL
from .compile import ROWS, CompiledKernel
from .occupancy import Occupancy
from .traffic import Traffic

# Seconds from a load to its data. Fitted on an H200 to the plain loops with blocks of 64 and 128 columns, which are
# within 8% of their predictions (docs/analysis.md); assumed for every other device.
LATENCY = 550e-9
L2_LATENCY = 240e-9
PUBLISHED = Path(__file__).parent.parent / "page" / "data" / "h200.json"
DEVICES = {  # the device of the database that an architecture stands for
    "sm_80": "A100 SXM 80GB",
    "sm_90": "H200 SXM",
    "sm_100": "B200",
    "gfx90a": "MI250X, one GCD",
    "gfx942": "MI300X",
}


CACHES = {"sm_90": "H100 SXM"}  # the database has the L2 size of another device of the architecture


class Ceiling(NamedTuple):
    """A bandwidth, and where it comes from."""

    bytes_per_second: float
    source: str


class MemoryBytes(NamedTuple):
    """Bytes that one kernel moves to and from memory."""

    read: float
    written: float

    @property
    def total(self) -> float:
        return self.read + self.written


class Limits(NamedTuple):
    """What is known about a device."""

    name: str
    sms: int
    l2_bytes: int | None
    peak: float | None  # bytes per second
    peak_source: str


def limits_of(target: Target) -> Limits:
    """The device of the database that a target stands for; for this machine's GPU, what is known about that GPU."""
    arch = target.device.arch
    if target is not TARGETS.get(arch):
        here = describe()
        peak, source = here.peak_bytes_per_second, f"peak of {here.name}: {here.peak_source}"
        return Limits(here.name, target.device.n_sms, here.l2_bytes, peak, source)
    device, cache = _known(DEVICES[arch]), _known(CACHES.get(arch, DEVICES[arch])).l2_bytes
    peak = float(device.peak_bytes_per_second.value)
    l2_bytes = cache.value if cache else None
    return Limits(
        device.name, target.device.n_sms, l2_bytes, peak, f"specified peak of {device.name}"
    )


def _known(name: str) -> Known:
    return next(device for device in database().devices if device.name == name)


def running_programs(kernel: CompiledKernel, occupancy: Occupancy, sms: int) -> int:
    """Programs that a device holds at once."""
    return min(kernel.n_programs, max(1, occupancy.programs) * sms)


def memory_bytes(
    kernel: CompiledKernel,
    traffic: Traffic,
    running: int,
    l2_bytes: int | None,
    rows: int,
    tensors: Collection[str] = ROWS,
) -> MemoryBytes:
    """Bytes between memory and the chip, from the traffic of a kernel of which ``running`` programs run at once.

    rows: of the tensors of rows, ``tensors``.
    """
    in_work = running / kernel.share * max(1, kernel.pipeline_depth) * kernel.rows_each
    again = [flow for flow in traffic.loads(tensors) if flow.passes > 1.5]
    row_bytes = sum(flow.tensor_bytes for flow in again) / rows
    # Whether rows that are loaded again come from memory again.
    reloaded = l2_bytes is not None and in_work * row_bytes > l2_bytes / 2
    read = written = 0.0
    for flow in traffic.flows:
        passes = min(1.0, flow.passes)
        if flow.kind in ("store", "atomic"):
            written += flow.tensor_bytes * passes
            continue
        if reloaded and flow in again:
            passes = flow.passes
        if flow.kind != "poll":
            read += flow.tensor_bytes * passes
    return MemoryBytes(read, written)


def ceiling_of(limits: Limits, case: Case) -> Ceiling:
    """The measured ceiling that the package ships for a device, at the most similar size; else the peak."""
    published = _published()
    if limits.name in (DEVICES[published.arch], published.device):
        measured = [
            (_distance(case, other), value)
            for part in published.parts
            if part.unit == "GB/s" and CEILING in part.providers
            for other in part.cases
            if other.direction == case.direction and other.dtype in DTYPES
            if (value := other.values[part.providers.index(CEILING)]) is not None
        ]
        if measured:
            source = f"measured on {published.device}, {published.date}"
            return Ceiling(min(measured)[1] * 1e9, source)
    if limits.peak is None:
        raise ValueError(f"the peak bandwidth of {limits.name} is unknown; give --ceiling GB/S")
    return Ceiling(limits.peak, limits.peak_source)


def _distance(case: Case, other: object) -> tuple[float, float]:
    """How much the bytes of two cases differ, then their widths."""
    rows, cols, dtype = (getattr(other, name) for name in ("rows", "cols", "dtype"))
    similar = Case(
        operation="rms_norm", direction=case.direction, rows=rows, cols=cols, dtype=dtype
    )
    sizes = case.compulsory_bytes / similar.compulsory_bytes
    return abs(math.log(sizes)), abs(math.log(case.cols / cols))


@cache
def _published() -> Published:
    return read_published(PUBLISHED)


class Times(NamedTuple):
    """Seconds that each limit alone would take; the longest is the prediction."""

    bandwidth: float
    latency: float
    launch: float

    @property
    def limited_by(self) -> str:
        """The name of the longest."""
        return max(self._fields, key=lambda name: getattr(self, name))


def kernel_times(
    traffic: Traffic,
    moved: MemoryBytes,
    running: float,
    unrolled: float,
    ceiling: Ceiling,
    tensors: Collection[str] = ROWS,
) -> Times:
    """The limits of one kernel.

    running: programs that the device holds at once. unrolled: turns of the first loop over a row that the compiler made
    into one; the loop that stores is not unrolled. tensors: those of rows.
    """
    loaded = sum(flow.bytes for flow in traffic.loads(tensors))
    from_memory = min(loaded, moved.read)
    in_flight = running * traffic.in_flight
    waits = from_memory * LATENCY / unrolled + (loaded - from_memory) * L2_LATENCY
    return Times(
        moved.total / ceiling.bytes_per_second,
        waits / in_flight if in_flight else 0.0,
        SHORTEST_CALL,
    )
