"""The memory of one launch as the programs see it: every storage at an address of its own, far from the others.

An address that a kernel computes names its storage in the upper bits, so that an access which leaves its tensor never
arrives in another one, and nothing outside of a tensor is touched. For every element the last writer and reader are
kept. Two accesses of one element by different programs, one of them a write, are a race, unless both are atomics, or
an atomic of one element (acquire, release) orders the two programs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .findings import MOST_ACCESSES, Access, Finding, Kind, Reach, Run, Site, TensorUse

BEGIN = 1 << 48  # above every address of a process
SPACING = 44  # bits of the distance between two storages
NOBODY, SEVERAL = -1, -2
MOST_RUNS = 400
WRAP = 1 << 32  # elements by which an int32 offset is off

Array = np.ndarray[Any, Any]


class Argument(NamedTuple):
    """A tensor that a kernel was given, by the name of its parameter."""

    name: str
    tensor: Tensor


class Region:
    """One storage, with a shadow for every element. A storage of the meta device has no contents and no shadow."""

    def __init__(self, number: int, arguments: Sequence[Argument], views_only: bool) -> None:
        first = arguments[0].tensor
        self.storage = storage = first.untyped_storage()
        self.backed = first.device.type == "cpu"
        self.real = storage.data_ptr() if self.backed else 0
        self.bytes = storage.nbytes()
        self.item = min(one.tensor.element_size() for one in arguments)
        self.dtypes = {one.tensor.dtype for one in arguments}
        self.origin = min(
            int(one.tensor.storage_offset()) * one.tensor.element_size() // self.item
            for one in arguments
        )  # elements are counted from there
        self.names = "/".join(dict.fromkeys(one.name for one in arguments))
        self.base = BEGIN + (number << SPACING) + (1 << (SPACING - 1)) + self.real % 4096
        self.elements = self.bytes // self.item
        size = self.elements if self.backed else 0
        self.writer, self.reader = np.full((2, size), NOBODY, np.int32)
        self.writer_clock, self.reader_clock = np.zeros((2, size), np.int32)
        self.writer_line, self.reader_line = np.zeros((2, size), np.int32)
        self.rival = np.full(size, NOBODY, np.int32)  # the other program of a race
        self.atomic = np.zeros(size, bool)
        self.readers, self.writers = set[int](), set[int]()
        self.stored = 0  # bytes up to the last one that was stored, without contents
        self.first, self.end = self._span(arguments, views_only)
        self.inside = self._inside(arguments) if views_only and size else None

    def _span(self, arguments: Sequence[Argument], views_only: bool) -> tuple[int, int]:
        """The bytes that may be accessed."""
        if not views_only:
            return 0, self.bytes
        starts, ends = [], []
        for _, tensor in arguments:
            if not tensor.numel():
                continue
            start = tensor.storage_offset() * tensor.element_size()
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            reach = sum((size - 1) * stride for size, stride in steps)
            starts.append(int(start))
            ends.append(int(start + (reach + 1) * tensor.element_size()))
        return min(starts, default=0), max(ends, default=0)

    def _inside(self, arguments: Sequence[Argument]) -> Array:
        """Which elements belong to a tensor, for storages that have more."""
        inside = np.zeros(self.elements, bool)
        for _, tensor in arguments:
            width = tensor.element_size() // self.item
            own = np.zeros(self.elements // width, bool)
            view = torch.from_numpy(own).as_strided(
                tensor.shape, tensor.stride(), tensor.storage_offset()
            )
            view.fill_(True)
            inside[: len(own) * width] |= np.repeat(own, width)
        return inside

    def address(self, tensor: Tensor) -> int:
        """The address of a tensor's first element, as kernels get it."""
        return self.base + int(tensor.storage_offset()) * tensor.element_size()

    def contents(self) -> Array:
        """The bytes themselves; a write changes the tensor."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.bytes).from_address(self.real))

    def use(self) -> TensorUse:
        """Who read and wrote it."""
        written = self.writer != NOBODY
        return TensorUse(
            self.names,
            self.elements,
            int((self.reader != NOBODY).sum()),
            int(written.sum()),
            len(self.readers),
            len(self.writers),
            int(self.atomic.sum()),
            self._runs(written),
        )

    def reach(self) -> Reach:
        """How far stores went in a storage without contents."""
        return Reach(self.names, self.elements, self.stored // self.item)

    def _runs(self, written: Array) -> list[Run]:
        """Neighbors with the same writers, in order; the first ``MOST_RUNS``."""
        found: list[Run] = []
        ends = np.flatnonzero(np.diff(self.writer) | np.diff(self.rival)) + 1
        for first, end in zip([0, *ends], [*ends, len(written)], strict=True):
            if len(found) == MOST_RUNS:
                break
            if first < end and written[first]:
                both = {int(self.writer[first]), int(self.rival[first])} - {NOBODY}
                place = int(first) - self.origin, int(end) - 1 - self.origin
                found.append(Run(*place, tuple(sorted(both))))
        return found


class Memory:
    """The storages of one launch, and the races in it."""

    def __init__(
        self,
        number: int,
        kernel: str,
        arguments: Sequence[Argument],
        views_only: bool,
        everything: bool = False,
    ) -> None:
        self.number, self.kernel, self.everything = number, kernel, everything
        self.found: dict[tuple[Any, ...], Finding] = {}
        groups: dict[tuple[str, int], list[Argument]] = {}
        for one in arguments:
            storage = one.tensor.untyped_storage()
            key = storage.data_ptr() if one.tensor.device.type == "cpu" else storage._cdata
            groups.setdefault((one.tensor.device.type, key), []).append(one)
        self.regions = [
            Region(place, group, views_only) for place, group in enumerate(groups.values())
        ]
        self.of_tensor = {
            id(one.tensor): region
            for region, group in zip(self.regions, groups.values(), strict=True)
            for one in group
        }
        self.recording = True  # off while a launch is repeated in another order
        self.program = 0
        self.shown: set[int] = set()  # programs whose first accesses are kept, with everything: all
        self.accesses: list[Access] = []
        self.clocks: dict[int, int] = {}  # by program: how many times it has released
        self.seen: dict[int, dict[int, int]] = {}  # by program: the clocks that it has acquired
        self.released: dict[int, dict[int, int]] = {}  # by address: what an acquire there sees

    # ---- accesses ----

    def access(
        self, addresses: Array, active: Array, width: int, site: Site, values: Array | None = None
    ) -> tuple[Array, Array]:
        """Record one access of a block; returns (addresses in the process, lanes that may access them).

        values: what a store writes.
        """
        real, allowed = addresses.copy(), active.copy()
        mine = active & (addresses >= BEGIN)
        regions = ((addresses - np.uint64(BEGIN)) >> np.uint64(SPACING)).astype(np.int64)
        if self.recording and self.program in self.shown and not mine.any():
            self._keep_masked(regions, addresses, active, width, site)
        for number in np.unique(regions[mine]):
            lanes = mine & (regions == number)
            if number >= len(self.regions):
                allowed &= ~lanes
                continue
            region = self.regions[number]
            offsets = (addresses[lanes] - np.uint64(region.base)).astype(np.int64)
            good = (offsets >= region.first) & (offsets + width <= region.end)
            if region.inside is not None:
                near = np.clip(offsets // region.item, 0, region.elements - 1)
                good &= region.inside[near]
            if self.recording and self.program in self.shown:
                self._keep(region, addresses, active, width, site, np.flatnonzero(lanes)[~good])
            if self.recording and not good.all():
                self._outside(region, offsets, good, np.flatnonzero(lanes), width, site)
            usable = lanes.copy()
            usable[lanes] = good
            allowed &= usable | ~lanes
            if not region.backed:
                allowed &= ~lanes
                if site.access != "load" and good.any():
                    region.stored = max(region.stored, int(offsets[good].max()) + width)
                continue
            real[lanes] = (region.real + offsets).astype(np.uint64)
            if self.recording and good.any():
                self._shadow(region, offsets[good], np.flatnonzero(usable), width, site, values)
        return real, allowed

    def _keep_masked(
        self, regions: Array, addresses: Array, active: Array, width: int, site: Site
    ) -> None:
        """An access without an active lane: its addresses name the tensor."""
        inside = (addresses >= BEGIN) & (regions < len(self.regions))
        if inside.any():
            region = self.regions[int(regions[inside][0])]
            self._keep(region, addresses, active, width, site, np.empty(0, np.int64))

    def _keep(
        self,
        region: Region,
        addresses: Array,
        active: Array,
        width: int,
        site: Site,
        outside: Array,
    ) -> None:
        kept = sum(one.program == self.program for one in self.accesses)
        if self.everything or kept < MOST_ACCESSES:
            start = np.uint64(region.base + region.origin * region.item)
            offsets = (addresses - start).astype(np.int64)
            self.accesses.append(
                Access(
                    site,
                    region.names,
                    self.program,
                    width,
                    active.tolist(),
                    offsets.tolist(),
                    tuple(outside.tolist()),
                )
            )

    def order(self, address: int, acquires: bool, releases: bool) -> None:
        """An atomic of one element: what programs did before they released comes before an acquire that follows."""
        if not self.recording:
            return
        seen = self.seen.setdefault(self.program, {})
        if acquires:
            for program, clock in self.released.get(address, {}).items():
                seen[program] = max(clock, seen.get(program, -1))
        if releases:
            now = self.clocks.get(self.program, 0)
            shown = self.released.setdefault(address, {})
            for program, clock in {**seen, self.program: now}.items():
                shown[program] = max(clock, shown.get(program, -1))
            self.clocks[self.program] = now + 1

    def _shadow(
        self,
        region: Region,
        offsets: Array,
        lanes: Array,
        width: int,
        site: Site,
        values: Array | None,
    ) -> None:
        elements = offsets // region.item
        for step in range(max(1, width // region.item)):
            self._one(region, elements + step, lanes, site)
        if (
            site.access == "store"
            and values is not None
            and len(np.unique(elements)) < len(elements)
        ):
            self._repeated(region, elements, lanes, site, values)

    def _one(self, region: Region, elements: Array, lanes: Array, site: Site) -> None:
        me, clock = self.program, self.clocks.get(self.program, 0)
        writer, atomic = region.writer[elements], site.access == "atomic"
        rivals = (writer != NOBODY) & (writer != me)
        if atomic:
            rivals &= ~region.atomic[elements]
        rivals &= ~self._ordered(writer, region.writer_clock[elements], rivals)
        if rivals.any():
            kind: Kind = "read-write" if site.access == "load" else "write-write"
            first = int(elements[np.flatnonzero(rivals)[0]])
            access = "atomic" if region.atomic[first] else "store"
            before = Site(site.file, int(region.writer_line[first]), access)
            self._race(region, kind, elements, lanes, rivals, writer, (before, site))
        if site.access == "load":
            reader = region.reader[elements]
            others = (reader != NOBODY) & (reader != me)
            later = self._ordered(reader, region.reader_clock[elements], others & (reader >= 0))
            region.reader[elements] = np.where(others & ~later, SEVERAL, me)
            region.reader_clock[elements] = clock
            region.reader_line[elements] = site.line
            region.readers.add(me)
            return
        reader = region.reader[elements]
        rivals = (reader != NOBODY) & (reader != me)
        rivals &= ~self._ordered(reader, region.reader_clock[elements], rivals & (reader >= 0))
        if rivals.any():
            first = int(elements[np.flatnonzero(rivals)[0]])
            before = Site(site.file, int(region.reader_line[first]), "load")
            self._race(region, "read-write", elements, lanes, rivals, reader, (before, site))
        region.writer[elements] = me
        region.writer_clock[elements] = clock
        region.writer_line[elements] = site.line
        region.atomic[elements] = atomic
        region.writers.add(me)

    def _ordered(self, programs: Array, clocks: Array, asked: Array) -> Array:
        """Whether an earlier access of another program comes before this one by an atomic."""
        known = self.seen.get(self.program)
        ordered = np.zeros(len(programs), bool)
        if known and asked.any():
            for program in np.unique(programs[asked]):
                ordered |= asked & (programs == program) & (clocks <= known.get(int(program), -1))
        return ordered

    # ---- findings ----

    def _race(
        self,
        region: Region,
        kind: Kind,
        elements: Array,
        lanes: Array,
        rivals: Array,
        others: Array,
        sites: tuple[Site, Site],
    ) -> None:
        place = int(np.flatnonzero(rivals)[0])
        element, other = int(elements[place]), int(others[place])
        if kind == "write-write":
            region.rival[elements[rivals]] = others[rivals]
        programs = (other, self.program) if other >= 0 else (self.program,)
        self._note(kind, region, element, programs, int(lanes[place]), sites, int(rivals.sum()))

    def _outside(
        self, region: Region, offsets: Array, good: Array, lanes: Array, width: int, site: Site
    ) -> None:
        bad = np.flatnonzero(~good)
        place = int(bad[0])
        offset = int(offsets[place])
        wraps = any(
            region.first <= offset + turn * WRAP * width <= region.end - width
            for turn in (-2, -1, 1, 2)
        )
        kind: Kind = "int32" if wraps else "bounds"
        self._note(
            kind,
            region,
            offset // region.item,
            (self.program,),
            int(lanes[place]),
            (site,),
            len(bad),
        )

    def _repeated(
        self, region: Region, elements: Array, lanes: Array, site: Site, values: Array
    ) -> None:
        written = np.broadcast_to(values, values.shape).reshape(-1)
        written = written[lanes] if len(written) > 1 else np.repeat(written, len(lanes))
        order = np.argsort(elements, kind="stable")
        same = elements[order][1:] == elements[order][:-1]
        bits = (
            written[order].view(f"u{written.itemsize}")
            if written.dtype.kind == "f"
            else written[order]
        )
        differ = np.flatnonzero(same & (bits[1:] != bits[:-1]))
        if len(differ):
            place = int(order[differ[0] + 1])
            self._note(
                "lanes", region, int(elements[place]), (self.program,), int(lanes[place]), (site,),
                len(differ),
            )  # fmt: skip

    def _note(
        self,
        kind: Kind,
        region: Region,
        element: int,
        programs: tuple[int, ...],
        lane: int,
        sites: tuple[Site, ...],
        lanes: int,
    ) -> None:
        key = (kind, region.names, sites)
        if key in self.found:
            self.found[key] = self.found[key]._replace(lanes=self.found[key].lanes + lanes)
        else:
            element -= region.origin
            self.found[key] = Finding(
                kind, self.number, self.kernel, region.names, element, programs, lane, sites, lanes
            )

    def compare(self, region: Region, before: Array) -> None:
        """Note what another order of the programs made different."""
        differ = np.flatnonzero(region.contents() != before)
        if len(differ):
            elements = np.unique(differ // region.item)
            if ("order", region.names, ()) not in self.found:
                self._note("order", region, int(elements[0]), (), 0, (), len(elements))
