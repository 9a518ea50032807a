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


class Block(NamedTuple):
    """One access of a program: the address of each lane, and whether it is active. values: what a store writes."""

    addresses: Array
    active: Array
    width: int  # bytes of an element
    site: Site
    values: Array | None


class Last:
    """The program that was the last to write, or to read, each element: how often it had released, and its line."""

    def __init__(self, size: int) -> None:
        self.program = np.full(size, NOBODY, np.int32)
        self.clock, self.line = np.zeros((2, size), np.int32)
        self.all = set[int]()  # programs that did so at all

    def set(self, elements: Array, programs: Array | int, me: int, clock: int, line: int) -> None:
        """Programs: of each element, ``me`` or ``SEVERAL``."""
        self.program[elements], self.clock[elements], self.line[elements] = programs, clock, line
        self.all.add(me)


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
        self.writer, self.reader = Last(size), Last(size)
        self.rival = np.full(size, NOBODY, np.int32)  # the other program of a race
        self.atomic = np.zeros(size, bool)
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
        written = self.writer.program != NOBODY
        return TensorUse(
            self.names,
            self.elements,
            int((self.reader.program != NOBODY).sum()),
            int(written.sum()),
            len(self.reader.all),
            len(self.writer.all),
            int(self.atomic.sum()),
            self._runs(written),
        )

    def reach(self) -> Reach:
        """How far stores went in a storage without contents."""
        return Reach(self.names, self.elements, self.stored // self.item)

    def _runs(self, written: Array) -> list[Run]:
        """Neighbors with the same writers, in order; the first ``MOST_RUNS``."""
        found: list[Run] = []
        writer = self.writer.program
        ends = np.flatnonzero(np.diff(writer) | np.diff(self.rival)) + 1
        for first, end in zip([0, *ends], [*ends, len(written)], strict=True):
            if len(found) == MOST_RUNS:
                break
            if first < end and written[first]:
                both = {int(writer[first]), int(self.rival[first])} - {NOBODY}
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

    def access(self, block: Block) -> tuple[Array, Array]:
        """Record one access of a block; returns (addresses in the process, lanes that may access them)."""
        addresses, active, width, site, _ = block
        real, allowed = addresses.copy(), active.copy()
        mine = active & (addresses >= BEGIN)
        regions = ((addresses - np.uint64(BEGIN)) >> np.uint64(SPACING)).astype(np.int64)
        shown = self.recording and self.program in self.shown
        if shown and not mine.any():
            # Without an active lane, the addresses name the tensor.
            named = regions[(addresses >= BEGIN) & (regions < len(self.regions))]
            if len(named):
                self._keep(self.regions[int(named[0])], block, np.empty(0, np.int64))
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
            outside = np.flatnonzero(lanes)[~good]
            if shown:
                self._keep(region, block, outside)
            if self.recording and len(outside):
                self._outside(region, offsets[~good], outside, block)
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
                self._shadow(region, offsets[good], np.flatnonzero(usable), block)
        return real, allowed

    def _keep(self, region: Region, block: Block, outside: Array) -> None:
        kept = sum(one.program == self.program for one in self.accesses)
        if self.everything or kept < MOST_ACCESSES:
            start = np.uint64(region.base + region.origin * region.item)
            offsets = (block.addresses - start).astype(np.int64)
            self.accesses.append(
                Access(
                    block.site,
                    region.names,
                    self.program,
                    block.width,
                    block.active.tolist(),
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

    def _shadow(self, region: Region, offsets: Array, lanes: Array, block: Block) -> None:
        elements = offsets // region.item
        for step in range(max(1, block.width // region.item)):
            self._one(region, elements + step, lanes, block.site)
        written = block.values if block.site.access == "store" else None
        if written is not None and len(np.unique(elements)) < len(elements):
            self._repeated(region, elements, lanes, written[lanes], block.site)

    def _one(self, region: Region, elements: Array, lanes: Array, site: Site) -> None:
        now = self.program, self.clocks.get(self.program, 0), site.line
        rivals = self._others(region.writer, elements)
        if site.access == "atomic":
            rivals &= ~region.atomic[elements]
        self._race(region, region.writer, rivals, elements, lanes, site)
        readers = self._others(region.reader, elements)
        if site.access == "load":
            region.reader.set(elements, np.where(readers, SEVERAL, self.program), *now)
        else:
            self._race(region, region.reader, readers, elements, lanes, site)
            region.writer.set(elements, self.program, *now)
            region.atomic[elements] = site.access == "atomic"

    def _others(self, last: Last, elements: Array) -> Array:
        """Where another program was the last one, and no atomic orders it before this access."""
        programs = last.program[elements]
        others = (programs != NOBODY) & (programs != self.program)
        if known := self.seen.get(self.program):
            for program in np.unique(programs[others & (programs >= 0)]):
                before = last.clock[elements] <= known.get(int(program), -1)
                others &= ~((programs == program) & before)
        return others

    # ---- findings ----

    def _race(
        self, region: Region, last: Last, rivals: Array, elements: Array, lanes: Array, site: Site
    ) -> None:
        """Note a race with the programs that were the last ones, if there are rivals among them."""
        if not rivals.any():
            return
        place = int(np.flatnonzero(rivals)[0])
        element = int(elements[place])
        other = int(last.program[element])
        kind: Kind = "read-write"
        access = "load"
        if last is region.writer:
            access = "atomic" if region.atomic[element] else "store"
            if site.access != "load":
                kind = "write-write"
                region.rival[elements[rivals]] = last.program[elements[rivals]]
        programs = (other, self.program) if other >= 0 else (self.program,)
        sites = Site(site.file, int(last.line[element]), access), site
        self._note(kind, region, element, programs, int(lanes[place]), sites, int(rivals.sum()))

    def _outside(self, region: Region, offsets: Array, lanes: Array, block: Block) -> None:
        """offsets, lanes: those that leave the tensor."""
        offset, width, me = int(offsets[0]), block.width, (self.program,)
        wraps = any(
            region.first <= offset + turn * WRAP * width <= region.end - width
            for turn in (-2, -1, 1, 2)
        )
        kind: Kind = "int32" if wraps else "bounds"
        element = offset // region.item
        self._note(kind, region, element, me, int(lanes[0]), (block.site,), len(lanes))

    def _repeated(
        self, region: Region, elements: Array, lanes: Array, written: Array, site: Site
    ) -> None:
        """written: the values of these lanes, of which several have the same element."""
        order = np.argsort(elements, kind="stable")
        same = elements[order][1:] == elements[order][:-1]
        bits = written[order]
        if bits.dtype.kind == "f":
            bits = bits.view(f"u{bits.itemsize}")
        differ = np.flatnonzero(same & (bits[1:] != bits[:-1]))
        if len(differ):
            place = int(order[differ[0] + 1])
            element, lane = int(elements[place]), int(lanes[place])
            self._note("lanes", region, element, (self.program,), lane, (site,), len(differ))

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
