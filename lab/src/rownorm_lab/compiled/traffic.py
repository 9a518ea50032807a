"""Global memory traffic of a kernel: requests, sectors, bytes and passes over a row, from its traced addresses.

A *request* is one memory instruction of one warp. A *sector* is the unit that memory moves: 32 bytes on NVIDIA; on AMD
a cache line, 64 bytes (gfx90a) or 128 (gfx942). Sectors are counted once for each request, as NVIDIA's profiler counts
them in L1: a second request for the same sector counts again.

Only some programs are traced. The others do the same at other rows, so their counts follow: addresses repeat their
alignment after ``_period`` groups of programs, and a loop over rows has the same traffic in every turn.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..data import texts
from . import llir
from .accesses import Access, Kind
from .compile import ROWS, CompiledKernel
from .operations import Value
from .trace import Launch, Unresolved, trace

# NVIDIA splits a copy of 16 bytes per thread to shared memory: these lanes together fill 128 bytes of it.
COPY_LANES = 8
SECTOR = {"sm_80": 32, "sm_90": 32, "sm_100": 32, "gfx90a": 64, "gfx942": 128}
MOST_THREADS = 1 << 16  # traced at once
_BASE = 44  # tensor number n begins at address n << _BASE


class Flow(NamedTuple):
    """Traffic between a kernel and one tensor."""

    tensor: str
    kind: Kind
    width: int  # bytes of one thread, the widest access
    requests: float
    sectors: float
    bytes: float  # that threads ask for, each element once for each time a program loads it
    tensor_bytes: int

    @property
    def passes(self) -> float:
        """How many times the tensor is read or written as a whole, over all programs."""
        return self.bytes / self.tensor_bytes


class Traffic(NamedTuple):
    """All flows of one kernel. in_flight: bytes of rows that a program asks for before it has to wait for any."""

    flows: list[Flow]
    sector_bytes: int
    in_flight: float

    def total(self, field: str, *kinds: Kind) -> float:
        """The sum of a field over flows of these kinds."""
        return sum(getattr(flow, field) for flow in self.flows if flow.kind in kinds)

    def loads(self, tensors: Collection[str]) -> list[Flow]:
        """The flows from these tensors."""
        return [one for one in self.flows if one.tensor in tensors and one.kind in ("load", "copy")]

    def passes(self, tensors: Collection[str]) -> float:
        """How many times these tensors are loaded, of those that are."""
        loads = self.loads(tensors)
        return sum(one.bytes for one in loads) / (sum(one.tensor_bytes for one in loads) or 1)

    @property
    def sector_use(self) -> float:
        """The part of all sectors that programs need. Below 1: misaligned, or loaded by several threads."""
        sectors = sum(flow.sectors for flow in self.flows)
        return sum(flow.bytes for flow in self.flows) / (sectors * self.sector_bytes)


def traffic_of(kernel: CompiledKernel, arch: str, row_bytes: int, n_rows: int) -> Traffic:
    """Trace some programs of a kernel and add up the traffic of all."""
    function = llir.parse(kernel.compiled.asm["llir"])
    sector = SECTOR[arch]
    turns = n_rows // kernel.turns_over if kernel.turns_over else 0
    few = kernel.pipeline_depth + 4
    if turns <= few + 2:
        counts, in_flight = _counted(kernel, function, sector, row_bytes, n_rows)
    else:
        # A loop over rows: count few turns, then two more, which are as good as any.
        fewer, _ = _counted(
            kernel, function, sector, row_bytes, n_rows - (turns - few) * kernel.turns_over
        )
        more, in_flight = _counted(
            kernel, function, sector, row_bytes, n_rows - (turns - few - 2) * kernel.turns_over
        )
        counts = {
            key: counted + (counted - fewer.get(key, 0)) * ((turns - few - 2) / 2)
            for key, counted in more.items()
        }
    if any(kind == "copy" for _, kind, _ in counts):
        in_flight *= max(1, kernel.pipeline_depth - 1)
    flows = flows_of(counts, kernel)
    _check(flows, kernel)
    return Traffic(flows, sector, in_flight)


# (tensor, kind, width): array of requests, sectors, bytes.
Counts = dict[tuple[str, Kind, int], Any]


def flows_of(counts: Counts, kernel: CompiledKernel) -> list[Flow]:
    """What was counted, for each tensor and kind of access."""
    by_tensor: dict[tuple[str, Kind], list[tuple[int, Any]]] = defaultdict(list)
    for (tensor, kind, width), counted in counts.items():
        by_tensor[tensor, kind].append((width, counted))
    flows = []
    for (tensor, kind), found in by_tensor.items():
        widths = [width for width, _ in found]
        requests, sectors, size = map(float, sum(counted for _, counted in found))
        whole = kernel.tensors[tensor]
        flows.append(Flow(tensor, kind, max(widths), requests, sectors, size, whole))
    return flows


def _check(flows: list[Flow], kernel: CompiledKernel) -> None:
    """A kernel accesses every element of its rows. If the trace says otherwise, the trace is wrong."""
    for tensor in (name for name in kernel.tensors if name in ROWS):
        passes = sum(flow.passes for flow in flows if flow.tensor == tensor)
        if passes < 0.99:
            raise Unresolved(
                f"{kernel.name} was followed over {passes:.1%} of {tensor}, and a kernel accesses all of its rows: if "
                "the values are right, its addresses have a form that this version of rownorm cannot follow"
            )


def _counted(
    kernel: CompiledKernel, function: llir.Function, sector: int, row_bytes: int, n_rows: int
) -> tuple[Counts, float]:
    """(requests, sectors and bytes of all programs, most bytes of rows that a program loads without a branch)."""
    arguments: dict[str, Value] = {
        name: n_rows if name == "n_rows" else value
        for name, value in kernel.arguments.items()
        if not name.endswith("_ptr")
    }
    sampled = _sample(kernel, sector, row_bytes, n_rows)
    return count_programs(kernel, function, arguments, sampled, sector, ROWS)


def count_programs(
    kernel: CompiledKernel,
    function: llir.Function,
    values: Mapping[str, Value],
    sampled: tuple[Any, Any],
    sector: int,
    rows: Collection[str],
    size: tuple[int, int] | None = None,
    **how: Any,
) -> tuple[Counts, float]:
    """(requests, sectors and bytes of all programs, most bytes of rows that a program loads without a branch).

    values: of the arguments that are no tensors. sampled: the programs to trace, and how many each stands for. rows:
    tensors whose loads count as in flight. size: of the grid in x and y; else it is a line. how: passed to ``trace``.
    """
    for name, n_bytes in kernel.tensors.items():
        if n_bytes >= 1 << (_BASE - 1):
            raise Unresolved(
                f"{name} has {texts.memory(n_bytes)}, more than any GPU holds: take fewer rows"
            )
    threads = kernel.num_warps * kernel.warp_size
    programs, weights = sampled
    arguments: list[Value] = []
    roles = dict[int, str]()
    for number, name in enumerate(kernel.arguments, 1):
        if name in values:
            arguments.append(values[name])
        else:
            roles[number] = name if name in kernel.tensors else name.removesuffix("_ptr")
            arguments.append(number << _BASE)
    counts: Counts = defaultdict(lambda: np.zeros(3))
    loaded: dict[tuple[int, int], float] = defaultdict(float)  # by batch and visit
    batch = max(1, MOST_THREADS // threads)
    for start in range(0, len(programs), batch):
        chosen, weight = programs[start : start + batch], weights[start : start + batch]
        shape = (len(chosen), kernel.num_warps, kernel.warp_size)

        def count(
            visit: int,
            access: Access,
            address: Value,
            mask: Value,
            shape: tuple[int, int, int] = shape,
            weight: Any = weight,
            start: int = start,
        ) -> None:
            addresses = np.broadcast_to(address, math.prod(shape)).reshape(shape)
            active = np.broadcast_to(np.asarray(mask) != 0, math.prod(shape)).reshape(shape)
            # The same instruction may access another tensor in another program.
            owner = np.where(active, addresses + (1 << (_BASE - 1)) >> _BASE, 0).max(axis=(1, 2))
            lanes = COPY_LANES if access.kind == "copy" and access.width == 16 else shape[2]
            found = counted(addresses, active, access.width, sector, lanes)
            for number in np.unique(owner[owner > 0]).tolist():
                key = (roles[number], access.kind, access.width)
                counts[key] += found @ (weight * (owner == number))
                if access.kind in ("load", "copy") and roles[number] in rows:
                    loaded[start, visit] += float(found[2].max())

        x, y = size or (kernel.n_programs, 1)
        launch = Launch(chosen, x, threads, kernel.warp_size, y)
        trace(function, arguments, launch, count, **how)
    return counts, max(loaded.values(), default=0.0)


def counted(addresses: Any, active: Any, width: int, sector: int, lanes: int | None = None) -> Any:
    """(requests, sectors, bytes) of each program, an array (3, programs), from arrays (programs, warps, lanes).

    lanes: whose sectors are counted together; default: those of a warp.
    """
    requests = active.any(axis=2).sum(axis=1)
    if lanes is not None:
        shape = (len(addresses), -1, lanes)
        addresses, active = addresses.reshape(shape), active.reshape(shape)
    sectors = _distinct(addresses // sector, active).sum(axis=1)
    if width > sector or (addresses % sector + width > sector).any():
        last = (addresses + width - 1) // sector
        beyond = active & (last != addresses // sector)
        sectors = sectors + _distinct(last, beyond).sum(axis=1)
    programs = addresses.shape[0]
    elements = _distinct(addresses.reshape(programs, -1), active.reshape(programs, -1))
    return np.stack([requests, sectors, elements * width]).astype(float)


def _distinct(numbers: Any, active: Any) -> Any:
    """How many different numbers there are along the last axis, where ``active``."""
    ordered = np.sort(np.where(active, numbers, -1), axis=-1)
    changes = (ordered[..., 1:] != ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    return changes.sum(axis=-1) + (ordered[..., 0] >= 0)


def _sample(kernel: CompiledKernel, sector: int, row_bytes: int, n_rows: int) -> tuple[Any, Any]:
    """(ids of programs to trace, how many programs each stands for)."""
    share, n_groups = kernel.share, kernel.n_programs // kernel.share
    if kernel.turns_over:
        groups, weights = _looping_groups(kernel, n_groups, sector, row_bytes, n_rows)
    elif kernel.sections:
        # Each section is the columns of one vector: equal steps, and the last of them may be shorter.
        length = n_groups // kernel.sections
        some, weight = _cycles(length, length - 1, sector)
        groups = [section * length + group for section in range(kernel.sections) for group in some]
        weights = weight * kernel.sections
    else:
        full = min(n_groups - 1, n_rows // kernel.rows_each)
        period = _period(sector, row_bytes * kernel.rows_each, *_partial_rows(kernel, n_groups))
        groups, weights = _cycles(n_groups, full, period)
    ids = [group * share + rank for group in groups for rank in range(share)]
    return np.array(ids, np.int64), np.repeat(weights, share)


def _cycles(n_groups: int, alike: int, period: int) -> tuple[list[int], list[float]]:
    """The first ``alike`` groups repeat after ``period``: one cycle of them, and every group that is left."""
    cycles = alike // period
    first = list(range(period)) if cycles else []
    rest = list(range(cycles * period, n_groups))
    return [*first, *rest], [float(cycles)] * len(first) + [1.0] * len(rest)


def _looping_groups(
    kernel: CompiledKernel, n_groups: int, sector: int, row_bytes: int, n_rows: int
) -> tuple[list[int], list[float]]:
    """Groups that loop over tiles of rows: that of the last tile, those before it, and those after it."""
    block_rows = kernel.turns_over // n_groups
    n_tiles = -(-n_rows // block_rows)
    last = (n_tiles - 1) % n_groups
    longer = range(last)  # they have as many turns as the last tile's group
    shorter = range(last + 1, n_groups)
    period = _period(sector, row_bytes * block_rows, *_partial_rows(kernel, n_groups))
    groups, weights = [last], [1.0]
    for same in (longer, shorter):
        chosen = same[:period]
        groups += chosen
        weights += [len(same) / len(chosen)] * len(chosen) if chosen else []
    return groups, weights


def _partial_rows(kernel: CompiledKernel, n_groups: int) -> list[int]:
    """Bytes of a group's row of each matrix of partial sums."""
    return [size // n_groups for name, size in kernel.tensors.items() if name.endswith("_partial")]


def _period(sector: int, *steps: int) -> int:
    """After how many steps of these bytes all addresses have the same place in their sectors."""
    return max(sector // math.gcd(sector, step) for step in steps)
