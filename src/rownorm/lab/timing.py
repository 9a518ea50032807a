"""Device time, host time and peak memory of calls. How and why: docs/method.md.

A *round* goes through every set of inputs, once or several times, and gives the time of one call. On a GPU it is one
replay of a CUDA graph after the cache was flushed; where a call cannot be captured, single calls between events; on a
CPU, a loop by the clock.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from . import records

Calls = Sequence[Callable[[], Any]]

CACHE_MULTIPLE = 3  # inputs of a round are this many times the last cache
GPU_ROUND = 1e-3  # seconds that a round should take, so that its start and end do not matter
LONGEST_ROUND = 20e-3  # of one provider, in seconds: slower ones go through fewer sets
CPU_ROUND = 5e-3
SHORTEST_CALL = 2e-6  # seconds: what a kernel takes that has nothing to do
DEFAULT_CACHE = 64 << 20
HOST_CALLS = 64  # in a round; few enough that the device's queue does not fill up and hold the host
FEWEST_HOST_CALLS = 4
HOST_ROUND = (
    5e-3  # seconds of work that a round of host time leaves to the device, which is then waited for
)


class Plan(NamedTuple):
    """How a round is made up. It depends on the case and the device alone, so that records can be compared."""

    sets: int  # of inputs
    repeats: int  # of all of them

    @property
    def calls(self) -> int:
        return self.sets * self.repeats


def plan_round(
    moved: int, read: int, *, cache: int | None, peak: float | None, memory: int, on_gpu: bool
) -> Plan:
    """Enough sets of inputs to exceed the cache, enough calls to be measurable, and no more memory than a quarter.

    moved: the bytes of one call; read: those of its inputs. Where the cache would ask for so many sets that a round
    became long, a round goes once through fewer; on a GPU the flush before it leaves nothing in the cache.
    """
    seconds = max(SHORTEST_CALL, moved / (peak or (2e12 if on_gpu else 4e9)))
    enough_time = math.ceil((GPU_ROUND if on_gpu else CPU_ROUND) / seconds)
    enough_bytes = math.ceil(CACHE_MULTIPLE * (cache or DEFAULT_CACHE) / read)
    affordable = max(2, memory // 4 // moved)
    sets = min(affordable, max(2, min(enough_time, enough_bytes)))
    return Plan(sets, max(1, math.ceil(enough_time / sets)))


def shortened(plan: Plan, seconds: float) -> Plan:
    """The plan for a provider that takes so many seconds for a call: no round lasts, but it has two calls at least."""
    most = max(2, int(LONGEST_ROUND / max(seconds, SHORTEST_CALL)))
    if plan.calls <= most:
        return plan
    return Plan(min(plan.sets, most), max(1, most // plan.sets))


class Rounds(Protocol):
    """Something that can be timed, round by round."""

    timer: records.Timer
    calls: int

    def run(self) -> Callable[[], float]:
        """Start a round. When the device is done, what this returns gives the seconds of one call."""


class Flush:
    """Reads so much that nothing else is left in the GPU's cache. Reading leaves nothing to be written back later."""

    def __init__(self, cache: int | None, device: torch.device) -> None:
        n_bytes = CACHE_MULTIPLE * (cache or DEFAULT_CACHE)
        self.buffer = torch.zeros(n_bytes // 4, dtype=torch.int32, device=device)

    def __call__(self, times: int = 1) -> None:
        for _ in range(times):
            self.buffer.amax()


class GraphRounds:
    """Rounds that are replays of one CUDA graph.

    The outputs of as many calls as there are sets stay alive, so no call finds another's output, or its own, in cache.
    """

    timer: records.Timer = "cuda_graph"

    def __init__(self, calls: Calls, repeats: int, flush: Flush) -> None:
        """Captures on the current stream, which must not be the default one: autograd runs backward on the stream of
        its forward, so the calls must have been prepared on it too."""
        self.calls = repeats * len(calls)
        self.flush = flush
        stream = torch.cuda.current_stream()
        for call in calls[:2]:
            call()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        kept: deque[Any] = deque(maxlen=len(calls))
        with torch.cuda.graph(self.graph, stream=stream):
            for _ in range(repeats):
                for call in calls:
                    kept.append(call())
        kept.clear()
        self.graph.replay()  # the first one is slower
        stream.synchronize()

    def run(self) -> Callable[[], float]:
        # The device is still flushing when the graph arrives: it does not wait for the host.
        self.flush(4)
        start, end = _events()
        start.record()
        self.graph.replay()
        end.record()
        return lambda: start.elapsed_time(end) / 1e3 / self.calls


class EventRounds:
    """Rounds of single calls, each between two events after a flush. For calls that cannot be captured."""

    timer: records.Timer = "device_events"
    most_calls = 16

    def __init__(self, calls: Calls, flush: Flush) -> None:
        self.round = calls[: self.most_calls]
        self.calls = len(self.round)
        self.flush = flush

    def run(self) -> Callable[[], float]:
        pairs = []
        for call in self.round:
            self.flush(16)  # long enough for the host to start the call meanwhile
            start, end = _events()
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        return lambda: sum(start.elapsed_time(end) for start, end in pairs) / 1e3 / self.calls


class CpuRounds:
    """Rounds by the clock."""

    timer: records.Timer = "cpu_clock"

    def __init__(self, calls: Calls, repeats: int) -> None:
        self.round = [call for _ in range(repeats) for call in calls]
        self.calls = len(self.round)
        for call in calls[:2]:
            call()

    def run(self) -> Callable[[], float]:
        start = time.perf_counter()
        for call in self.round:
            call()
        seconds = (time.perf_counter() - start) / self.calls
        return lambda: seconds


def rounds_of(calls: Calls, plan: Plan, flush: Flush | None) -> Rounds:
    """Rounds as the device allows: a graph, else events; the clock where there is no flush, on a CPU."""
    if flush is None:
        return CpuRounds(calls, plan.repeats)
    once = EventRounds(calls[:1], flush).run()
    torch.cuda.synchronize()
    plan = shortened(plan, once())
    calls = calls[: plan.sets]
    try:
        return GraphRounds(calls, plan.repeats, flush)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:  # it did something that a graph cannot hold
        torch.cuda.synchronize()
        return EventRounds(calls, flush)


def host_calls(slowest: float) -> int:
    """The calls of a round of host time, where the slowest provider keeps the device busy for so many seconds a call.

    With 64 of a millisecond each, nearly all of the time would be spent waiting for the device.
    """
    affordable = int(HOST_ROUND / max(slowest, SHORTEST_CALL))
    return max(FEWEST_HOST_CALLS, min(HOST_CALLS, affordable))


def host_seconds(call: Callable[[], Any], calls: int) -> float:
    """What the caller waits for one call on a GPU, the device not being waited for."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - start) / calls
    torch.cuda.synchronize()
    return seconds


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most GPU memory that is alive during a call beyond what was before it, its outputs included."""
    torch.cuda.synchronize()
    with _uncollected():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Python collects no garbage meanwhile: tensors in it, freed during a call, would hide as much of what it takes."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
