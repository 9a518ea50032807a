"""CUDA graphs, streams, threads and determinism. Graphs of every regime: ``launch/test_cuda_graphs.py``."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rownorm.program import COLUMNS
from support.operators import every_case, full_cases, gradients, same_bits

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="CUDA graphs and streams need a GPU"
)


def both_ways(case, tensors):
    """(outputs, then gradients)."""
    outputs = case(**tensors)
    return (*(output.detach() for output in outputs), *gradients(outputs, tensors))


@needs_gpu
@every_case
def test_graph_capture(case, device):
    """Forward and backward in one graph, replayed on new values."""
    tensors = case.tensors(device, rows=(33,), cols=1000, requires_grad=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compiles, and warms the allocator
            both_ways(case, tensors)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both_ways(case, tensors)
    for _ in range(2):
        with torch.no_grad():
            for t in tensors.values():
                t.normal_()
        graph.replay()
        same_bits(captured, both_ways(case, tensors))


@needs_gpu
@full_cases
def test_make_graphed_callables(case, device):
    tensors = case.tensors(device, rows=(33,), cols=1000, requires_grad=True)
    samples = tuple(t.detach().clone().requires_grad_() for t in tensors.values())
    gc.collect()  # a graph of an earlier test that is collected during the capture would end it
    graphed = torch.cuda.make_graphed_callables(case.positional, samples)
    actual = graphed(*tensors.values())
    expected = case(**tensors)
    same_bits(actual, expected)
    same_bits(gradients(actual, tensors), gradients(expected, tensors))


@needs_gpu
@full_cases
def test_streams(case, device):
    """Kernels run on the current stream, after the work that was queued there before."""
    many = [case.tensors(device, rows=(257,), cols=1024, requires_grad=True) for _ in range(4)]
    expected = [both_ways(case, tensors) for tensors in many]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in many]
    results = []
    for stream, tensors in zip(streams, many, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            scaled = {n: (t * 2 / 2).detach().requires_grad_() for n, t in tensors.items()}
            results.append(both_ways(case, scaled))
    torch.cuda.synchronize()
    same_bits(results, expected)


@full_cases
def test_threads(case, device, without_interpreter):
    """Threads start together, before any call is prepared."""
    # Triton's interpreter keeps the program index in a global, so without a GPU threads take the reference.
    shapes = [(2, 8), (3, 16), (5, 24), (2, 8)]
    many = [
        case.tensors(device, rows=(rows,), cols=cols, requires_grad=True) for rows, cols in shapes
    ]
    together = threading.Barrier(len(many))

    def work(tensors):
        together.wait()
        return [both_ways(case, tensors) for _ in range(20)]

    with ThreadPoolExecutor(len(many)) as threads:
        results = list(threads.map(work, many))
    for tensors, repetitions in zip(many, results, strict=True):
        expected = both_ways(case, tensors)
        for repetition in repetitions:
            same_bits(repetition, expected)


@every_case
def test_same_bits_every_time(case, device):
    tensors = case.tensors(device, rows=(37,), cols=48, requires_grad=True)
    first = both_ways(case, tensors)
    for _ in range(3):
        same_bits(both_ways(case, tensors), first)


@full_cases
def test_a_row_does_not_depend_on_its_batch(case, device):
    tensors = case.tensors(device, rows=(19,), cols=48)
    outputs = case(**tensors)
    for rows in (slice(0, 1), slice(7, 12)):
        part = {n: t if n in COLUMNS else t[rows] for n, t in tensors.items()}
        same_bits(case(**part), tuple(output[rows] for output in outputs))
