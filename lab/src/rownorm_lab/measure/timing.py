"""Device time, host time and peak memory of calls. How and why: docs/method.md.

A *round* calls every set of inputs, once or several times, and gives the time of one call. On a GPU it is one replay
of a CUDA graph after a cache flush, or, if a call cannot be captured, single calls between events. On a CPU it is a
loop timed by the clock.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from ..data import records

Calls = Sequence[Callable[[], Any]]
Item = TypeVar("Item")

CACHE_MULTIPLE = 3  # the inputs of a round exceed the last cache this many times
GPU_ROUND = 1e-3  # seconds that a round should take, so that its start and end are negligible
LONGEST_ROUND = 20e-3  # seconds; a provider that would take longer uses fewer calls
CPU_ROUND = 5e-3
SHORTEST_CALL = 2e-6  # seconds: an empty kernel
DEFAULT_CACHE = 64 << 20
HOST_CALLS = 64  # in a round; few enough that the launch queue does not fill up and block the host
FEWEST_HOST_CALLS = 4
HOST_ROUND = 5e-3  # seconds of device work that a round of host time may queue


class RoundSize(NamedTuple):
    """The calls of a round. They depend on the case and the device alone, so that records can be compared."""

    sets: int  # sets of inputs
    repeats: int  # calls with each set

    @property
    def calls(self) -> int:
        return self.sets * self.repeats


def round_size(
    moved: int, read: int, *, cache: int | None, peak: float | None, memory: int, on_gpu: bool
) -> RoundSize:
    """Enough sets of inputs to exceed the cache, enough calls to be measurable, at most a quarter of the memory.

    moved: the bytes of one call; read: the bytes of its inputs. If exceeding the cache takes so many sets that a round
    becomes long, the round uses fewer sets once; on a GPU the flush before it empties the cache anyway.
    """
    seconds = max(SHORTEST_CALL, moved / (peak or (2e12 if on_gpu else 4e9)))
    enough_time = math.ceil((GPU_ROUND if on_gpu else CPU_ROUND) / seconds)
    enough_bytes = math.ceil(CACHE_MULTIPLE * (cache or DEFAULT_CACHE) / read)
    affordable = max(2, memory // 4 // moved)
    sets = min(affordable, max(2, min(enough_time, enough_bytes)))
    return RoundSize(sets, max(1, math.ceil(enough_time / sets)))


def shortened(size: RoundSize, seconds: float) -> RoundSize:
    """The size for a provider whose call takes that many seconds: at most LONGEST_ROUND, but at least two calls."""
    most = max(2, int(LONGEST_ROUND / max(seconds, SHORTEST_CALL)))
    if size.calls <= most:
        return size
    return RoundSize(min(size.sets, most), max(1, most // size.sets))


class Flush:
    """Replaces the contents of the GPU's cache by reading a large buffer. Reads leave nothing to write back later."""

    def __init__(self, cache: int | None, device: torch.device) -> None:
        n_bytes = CACHE_MULTIPLE * (cache or DEFAULT_CACHE)
        self.buffer = torch.zeros(n_bytes // 4, dtype=torch.int32, device=device)

    def __call__(self, times: int = 1) -> None:
        for _ in range(times):
            self.buffer.amax()


class GraphRounds:
    """Rounds that replay one CUDA graph.

    As many outputs as there are sets stay allocated, so no call writes to memory that is still in the cache.
    """

    timer: records.Timer = "cuda_graph"

    def __init__(self, calls: Calls, repeats: int, flush: Flush) -> None:
        """Capture on the current stream, which must not be the default one. The calls must have been prepared on the
        same stream, because autograd runs backward on the stream of its forward."""
        self.calls = repeats * len(calls)
        self.flush = flush
        self.captured = calls  # whose tensors the graph uses
        stream = torch.cuda.current_stream()
        for call in calls[:2]:
            call()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        outputs: deque[Any] = deque(maxlen=len(calls))
        with torch.cuda.graph(self.graph, stream=stream):
            for _ in range(repeats):
                for call in calls:
                    outputs.append(call())
        outputs.clear()
        self.graph.replay()  # the first one is slower
        stream.synchronize()

    def run(self) -> Callable[[], float]:
        """Start a round. After synchronization, the returned function gives the seconds of one call."""
        # The device is still flushing when the graph is launched, so it does not wait for the host.
        self.flush(4)
        start, end = _events()
        start.record()
        self.graph.replay()
        end.record()
        return lambda: start.elapsed_time(end) / 1e3 / self.calls


class EventRounds:
    """Rounds of single calls, each between two events and after a flush. For calls that cannot be captured."""

    timer: records.Timer = "device_events"
    most_calls = 16

    def __init__(self, calls: Calls, flush: Flush) -> None:
        self.round = calls[: self.most_calls]
        self.calls = len(self.round)
        self.flush = flush

    def run(self) -> Callable[[], float]:
        """As ``GraphRounds.run``."""
        pairs = []
        for call in self.round:
            self.flush(16)  # long enough for the host to launch the call meanwhile
            start, end = _events()
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        return lambda: sum(start.elapsed_time(end) for start, end in pairs) / 1e3 / self.calls


class CpuRounds:
    """Rounds timed by the CPU's clock."""

    timer: records.Timer = "cpu_clock"

    def __init__(self, calls: Calls, repeats: int) -> None:
        self.round = [call for _ in range(repeats) for call in calls]
        self.calls = len(self.round)
        for call in calls[:2]:
            call()

    def run(self) -> Callable[[], float]:
        """As ``GraphRounds.run``."""
        start = time.perf_counter()
        for call in self.round:
            call()
        seconds = (time.perf_counter() - start) / self.calls
        return lambda: seconds


Rounds = GraphRounds | EventRounds | CpuRounds


def rounds_of(calls: Calls, size: RoundSize, flush: Flush | None) -> Rounds:
    """A CUDA graph if the calls can be captured, else events; the clock on a CPU, where there is no flush."""
    if flush is None:
        return CpuRounds(calls, size.repeats)
    once = EventRounds(calls[:1], flush).run()
    torch.cuda.synchronize()
    size = shortened(size, once())
    calls = calls[: size.sets]
    try:
        return GraphRounds(calls, size.repeats, flush)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:  # the calls did something that cannot be captured
        torch.cuda.synchronize()
        return EventRounds(calls, flush)


def host_calls(slowest: float) -> int:
    """The calls in a round of host time; ``slowest`` is the largest device time of a call, in seconds.

    With 64 calls of a millisecond each, nearly all of the time would be spent waiting for the device.
    """
    affordable = int(HOST_ROUND / max(slowest, SHORTEST_CALL))
    return max(FEWEST_HOST_CALLS, min(HOST_CALLS, affordable))


def step_seconds(step: Callable[[], Any], device: str) -> tuple[float, float]:
    """Seconds of a training step until the device has finished, and until the host has."""
    _wait_for_compiler()
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    step()
    on_host = time.perf_counter() - start
    synchronize()
    return time.perf_counter() - start, on_host


class Marks:
    """Moments inside a training step; ``seconds`` are the times between them.

    On a GPU they are events of the stream, which neither wait nor make the host wait.
    """

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.marks: list[Any] = []

    def __call__(self) -> None:
        if self.on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """One value less than there are marks. The device must have finished."""
        pairs = itertools.pairwise(self.marks)
        if self.on_gpu:
            return [start.elapsed_time(end) / 1e3 for start, end in pairs]
        return [end - start for start, end in pairs]


def in_turns(items: Sequence[Item], n_turns: int) -> Iterator[tuple[int, Item]]:
    """(turn, item): every item once in each turn.

    Each is first as often as last: what runs first finds other clocks and caches.
    """
    for turn in range(n_turns):
        first = turn % len(items)
        for item in (*items[first:], *items[:first]):
            yield turn, item


def host_seconds(call: Callable[[], Any], calls: int) -> float:
    """Host time of one call: a GPU is not waited for."""
    _wait_for_compiler()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - start) / calls
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return seconds


def call_for_ncu(call: Callable[[], Any]) -> None:
    """Call twice; the second call is what ``ncu --profile-from-start off`` profiles."""
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def peak_bytes(call: Callable[[], Any], on_gpu: bool) -> int:
    """The most memory allocated during a call, beyond what was allocated before it; outputs included.

    Of a call on the CPU what PyTorch's allocator gives, which the profiler records.
    """
    if not on_gpu:
        return _peak_bytes_on_cpu(call)
    torch.cuda.synchronize()
    with _no_garbage_collection():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def _peak_bytes_on_cpu(call: Callable[[], Any]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with (
        _no_garbage_collection(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        call()
    events = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
    changes = (one.nbytes() for one in sorted(events, key=lambda one: one.start_ns()))
    return max(itertools.accumulate(changes, initial=0))


def _wait_for_compiler() -> None:
    """rownorm compiles an extension when a norm with gradients is first called. Calls are cheaper once it is ready."""
    node = sys.modules.get("rownorm.launch.native.node")
    if node is not None:
        node.wait()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """No garbage collection inside: tensors freed during a call would lower the measured peak."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
