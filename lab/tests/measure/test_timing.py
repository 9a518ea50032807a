"""The size of rounds, and what they measure."""

import gc
import time

import pytest
import torch

from rownorm_lab.measure import timing
from rownorm_lab.measure.timing import CpuRounds, RoundSize, round_size, rounds_of, shortened

H200 = {"cache": 50 << 20, "peak": 4.8e12, "memory": 140 << 30, "on_gpu": True}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="times a GPU")


def test_large_inputs_have_two_sets():
    plan = round_size(1 << 29, 1 << 28, **H200)
    assert plan.sets == 2  # each larger than the cache
    assert plan.calls * (1 << 29) / 4.8e12 == pytest.approx(timing.GPU_ROUND, rel=0.15)


def test_medium_inputs_exceed_the_cache():
    plan = round_size(8 << 20, 4 << 20, **H200)
    assert plan.sets * (4 << 20) >= timing.CACHE_MULTIPLE * H200["cache"]
    assert plan.calls * (8 << 20) / 4.8e12 >= 0.9 * timing.GPU_ROUND


def test_small_inputs_are_used_once():
    """The flush before the round empties the cache, so thousands of sets are not needed."""
    plan = round_size(16 << 10, 8 << 10, **H200)
    assert plan.repeats == 1
    assert plan.sets == pytest.approx(timing.GPU_ROUND / timing.SHORTEST_CALL, abs=1)


def test_memory_is_limited_but_there_are_at_least_two_sets():
    small = H200 | {"memory": 1 << 30}
    plan = round_size(100 << 20, 10 << 20, **small)
    assert plan.sets * (100 << 20) <= small["memory"] // 4
    assert plan.sets >= 2
    assert round_size(1 << 30, 1 << 29, **small).sets == 2


def test_unknown_sizes_have_defaults():
    plan = round_size(1 << 20, 1 << 19, cache=None, peak=None, memory=8 << 30, on_gpu=False)
    assert plan.sets >= 2
    assert plan.calls == plan.sets * plan.repeats


def test_cpu_rounds_measure_one_call():
    done = []
    calls = [lambda i=i: (done.append(i), time.sleep(0.002)) for i in range(3)]
    rounds = CpuRounds(calls, repeats=2)
    done.clear()
    start = time.perf_counter()
    seconds = rounds.run()()
    whole = time.perf_counter() - start
    assert done == [0, 1, 2, 0, 1, 2]
    assert rounds.calls in (2, 4, 6)  # fewer if other processes use the GPU, too
    assert rounds.timer == "cpu_clock"
    assert 0.002 <= seconds <= whole / 6


def test_without_a_flush_the_clock_is_used():
    assert isinstance(rounds_of([lambda: None], RoundSize(1, 3), None), CpuRounds)


@pytest.mark.parametrize(
    ("size", "seconds", "expected"),
    [
        (RoundSize(500, 1), 2e-6, RoundSize(500, 1)),
        (RoundSize(2, 2), 1e-3, RoundSize(2, 2)),
        (RoundSize(500, 1), 1e-3, RoundSize(20, 1)),
        (RoundSize(4, 100), 1e-3, RoundSize(4, 5)),
        (RoundSize(30, 2), 1e-3, RoundSize(20, 1)),
        (RoundSize(500, 1), 1.0, RoundSize(2, 1)),
        (RoundSize(2, 1), 0.0, RoundSize(2, 1)),
    ],
)
def test_a_slow_provider_has_fewer_calls_in_a_round(size, seconds, expected):
    assert shortened(size, seconds) == expected
    assert shortened(size, seconds).calls <= size.calls


@needs_gpu
def test_graph_rounds_measure_a_kernel():
    flush = timing.Flush(torch.cuda.get_device_properties(0).L2_cache_size, torch.device("cuda"))
    inputs = [torch.randn(1 << 26, device="cuda") for _ in range(2)]
    with torch.cuda.stream(torch.cuda.Stream()):
        rounds = rounds_of([lambda x=x: torch.neg(x) for x in inputs], RoundSize(2, 3), flush)
        finish = rounds.run()
        torch.cuda.synchronize()
    assert rounds.timer == "cuda_graph"
    assert rounds.calls in (2, 4, 6)  # fewer if other processes use the GPU, too
    gigabytes_per_second = 2 * inputs[0].nbytes / finish() / 1e9
    assert 100 < gigabytes_per_second < 20_000


@needs_gpu
def test_calls_that_cannot_be_captured_are_timed_by_events():
    flush = timing.Flush(32 << 20, torch.device("cuda"))
    x = torch.randn(1 << 24, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        rounds = rounds_of([lambda: x.sum().item()] * 3, RoundSize(3, 1), flush)
        finish = rounds.run()
        torch.cuda.synchronize()
        assert rounds.timer == "device_events"
        assert 1e-6 < finish() < 1e-2
        # The stream is still good for the next one.
        assert rounds_of([lambda: torch.neg(x)], RoundSize(1, 1), flush).timer == "cuda_graph"


@pytest.mark.parametrize(
    ("slowest", "calls"), [(0.0, 64), (5e-6, 64), (1e-4, 50), (1e-3, 5), (2e-3, 4), (1.0, 4)]
)
def test_long_calls_get_few_host_calls(slowest, calls):
    assert timing.host_calls(slowest) == calls


@needs_gpu
def test_host_time_does_not_wait_for_the_device():
    x = torch.randn(1 << 28, device="cuda")
    torch.neg(x)
    assert timing.host_seconds(lambda: torch.neg(x), calls=20) < 1e-4


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_peak_memory_counts_outputs_and_temporaries(device):
    x = torch.randn(1 << 20, device=device)
    assert timing.peak_bytes(lambda: torch.neg(x), x.is_cuda) == x.nbytes
    assert timing.peak_bytes(lambda: torch.neg(torch.neg(x)), x.is_cuda) == 2 * x.nbytes


def test_garbage_is_not_collected_while_memory_is_measured(monkeypatch):
    """Tensors of the previous case, freed during a call, would make its peak 0."""
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    seen = []
    timing.peak_bytes(lambda: seen.append(gc.isenabled()), on_gpu=True)
    assert seen == [False]
    assert gc.isenabled()

    def fails():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="memory"):
        timing.peak_bytes(fails, on_gpu=True)
    assert gc.isenabled()


def test_a_step_takes_at_least_what_the_host_takes():
    calls = []
    whole, on_host = timing.step_seconds(lambda: calls.append(1), "cpu")
    assert calls == [1]
    assert 0 < on_host <= whole
