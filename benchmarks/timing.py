"""Device and host time of a call, for the scripts of this folder."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

L2_MULTIPLE = 3  # inputs rotate over at least this many times the L2 cache


def copies_needed(bytes_per_call: int) -> int:
    """How many sets of inputs make a rotation larger than the cache."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, -(-L2_MULTIPLE * l2 // max(1, bytes_per_call)))


def captured(
    call: Callable[[Any], Any], inputs: Sequence[Any], repeats: int = 1
) -> torch.cuda.CUDAGraph:
    """A CUDA graph of ``call`` over every set of inputs; outputs stay alive, so no two share memory."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(inputs[0])
        call(inputs[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(one) for _ in range(repeats) for one in inputs]
    del kept
    return graph


def graph_times(graph: torch.cuda.CUDAGraph, calls: int, rounds: int) -> list[float]:
    """Seconds per call, one figure a round."""
    graph.replay()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(rounds)
    ]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 / calls for start, end in events]


def host_time(call: Callable[[], Any], calls: int = 2000, rounds: int = 7) -> float:
    """Seconds the host spends in one call, the device never being waited for; median of rounds."""
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
        torch.cuda.synchronize()
    return statistics.median(times)
