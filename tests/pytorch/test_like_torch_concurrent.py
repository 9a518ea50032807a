"""Threads, streams and processes: norms behave as torch's own, through Python, C and C++."""

import multiprocessing
import operator
import os
import threading

import pytest
import torch

import rownorm
from rownorm import ops
from rownorm.ops import cpu_native, eager, execute
from support.fake_driver import needs_compiler
from support.like_torch import (
    COLS,
    FORMS,
    ROWS,
    assert_close,
    both,
    different_forms,
    gradients,
    make,
    outputs_of,
    outputs_with_gradients,
)
from support.native_fixtures import ON_GPU
from support.processes import assert_in_fork, at_once, from_workers, in_a_new_process

every_way = pytest.mark.usefixtures("way")
pytestmark = needs_compiler
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="streams need a GPU")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
N_THREADS = 3


def of_rows(tensors, n_rows):
    """Other tensors, so many rows each, that require gradients as these do."""
    return {
        n: (t[:1] * torch.arange(1, n_rows + 1, device=t.device)[:, None] if t.dim() > 1 else t + 1)
        .detach()
        .requires_grad_(t.requires_grad)
        for n, t in tensors.items()
    }


@every_way
@different_forms
def test_first_calls_in_threads(form, device):
    """Each prepares its own forward and backward; two threads have tensors of one shape."""
    (ours, tensors), (torchs, _) = both(form, device)
    many = [of_rows(tensors, n_rows) for n_rows in (1, 2, 2)]
    runs = [lambda one=one: [outputs_with_gradients(ours, one) for _ in range(2)] for one in many]
    for one, found in zip(many, at_once(runs), strict=True):
        for repetition in found:
            assert_close(repetition, outputs_with_gradients(torchs, one))


@every_way
@different_forms
def test_backward_of_one_graph_in_threads(form, device):
    """Forward ran in this thread; the graph is retained, then freed by one of the threads."""
    (ours, tensors), (torchs, others) = both(form, device)
    outputs, expected = outputs_of(ours, tensors), outputs_of(torchs, others)
    of_torch = gradients(expected, others)
    one = lambda: gradients(outputs, tensors, retain_graph=True)  # noqa: E731
    for found in at_once([one] * N_THREADS):
        assert_close(found, of_torch)
    (last,) = at_once([lambda: gradients(outputs, tensors)])
    assert_close(last, of_torch)
    for graph, inputs in ((outputs, tensors), (expected, others)):
        with pytest.raises(RuntimeError, match="second time"):
            gradients(graph, inputs)


@every_way
@different_forms
def test_forward_in_threads_and_one_backward(form, device):
    """The graphs of all threads meet in the weight."""

    def run(function, tensors):
        parts = at_once([lambda: outputs_of(function, tensors)] * N_THREADS)
        return gradients([y for part in parts for y in part], tensors)

    ours, torchs = both(form, device)
    assert_close(run(*ours), run(*torchs))


class Reentrant(torch.autograd.Function):
    """Its backward runs another backward, and so on. Autograd takes a thread of its own where that is deep."""

    @staticmethod
    def forward(ctx, x, function, depth, threads):
        ctx.arguments = x.detach(), function, depth, threads
        return x.sum()

    @staticmethod
    def backward(ctx, dy):
        x, function, depth, threads = ctx.arguments
        threads.add(threading.get_ident())
        x.requires_grad_()
        with torch.enable_grad():
            y = function(x) if depth % 32 == 0 else x
            if depth:
                y = Reentrant.apply(y, function, depth - 1, threads)
            y.sin().sum().backward()
        return dy * x.grad, None, None, None


@every_way
def test_backward_in_threads_of_autograd(device):
    ours, torchs, _ = FORMS["layer_norm"]

    def run(function):
        threads = set()
        x = make(("x",), device)["x"]
        Reentrant.apply(x, function, 64, threads).backward()
        assert len(threads) > 1
        return (x.grad,)

    assert_close(run(ours), run(torchs))


MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cuda" if ON_GPU else "cpu", torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t + 1, lambda t: t),
}


@every_way
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_one_thread_is_not_that_of_another(mode, device):
    (ours, tensors), (torchs, others) = both("rms_norm", device, dtype=torch.bfloat16)
    expected = outputs_with_gradients(ours, tensors)
    runs = [
        lambda: outputs_with_gradients(ours, tensors),
        lambda: outputs_with_gradients(torchs, others),
    ]
    with MODES[mode]():
        ours(**tensors)
        got, of_torch = at_once(runs)
    for one, same, other in zip(got, expected, of_torch, strict=True):
        assert torch.equal(one, same)
        assert (one.dtype, one.requires_grad) == (other.dtype, other.requires_grad)


@needs_gpu
@every_way
@different_forms
def test_side_streams(form, device):
    """Inputs are made, normed and differentiated on a side stream; autograd runs backward on it, too."""

    def run(function, tensors):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            late = {n: t * 1 for n, t in tensors.items()}
            outputs = outputs_of(function, late)
            total = sum(y.sin().sum() for y in outputs)
        found = torch.autograd.grad(total, (*tensors.values(),))  # called on another stream
        torch.cuda.current_stream().wait_stream(stream)
        return *outputs, *found

    ours, torchs = both(form, device)
    for _ in range(2):
        assert_close(run(*ours), run(*torchs))


@needs_gpu
@every_way
@different_forms
def test_memory_that_is_recorded_on_a_stream(form, device):
    """Memory is given back while the norm that reads it still waits on its stream."""
    ours, torchs, names = FORMS[form]
    expected = outputs_of(torchs, make(names, device, False))
    outputs_of(ours, make(names, device, False))  # prepared: the next call only launches
    stream = torch.cuda.Stream()
    tensors = make(names, device, False)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        outputs = outputs_of(ours, tensors)
    for t in tensors.values():
        t.record_stream(stream)
    del tensors, t
    overwritten = [torch.full((ROWS, COLS), float("nan"), device=device) for _ in range(16)]
    torch.cuda.synchronize()
    assert_close(outputs, expected)
    del overwritten


@needs_gpu
@every_way
@different_forms
def test_a_stream_for_each_thread(form, device):
    (ours, tensors), (torchs, others) = both(form, device)
    expected = outputs_with_gradients(torchs, others)
    torch.cuda.synchronize()

    def run():
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(5_000_000)
            found = outputs_with_gradients(ours, tensors)
            torch.cuda.current_stream().synchronize()
        return found

    for found in at_once([run] * N_THREADS):
        assert_close(found, expected)


def outcome(function, tensors):
    """Results and gradients; what the error says, where there is one."""
    outputs = outputs_of(function, tensors)
    try:
        return *outputs, *gradients(outputs, tensors)
    except RuntimeError as error:
        return *outputs, str(error)


@needs_fork
@every_way
@different_forms
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_after_the_first_call(form, device):
    """The child repeats calls of its parent, and makes new ones in threads. Then the parent goes on.

    torch refuses backward in a fork if autograd had threads before, as on a GPU. ``test_a_new_process`` has none.
    """
    ours, torchs, names = FORMS[form]
    outputs_with_gradients(ours, make(names, device))
    tensors = make(names, "cpu")  # a fork cannot use the GPU of its parent
    others = of_rows(tensors, 2)

    def check():
        for one in (tensors, tensors, others):
            assert_alike_outcomes([outcome(ours, one)], outcome(torchs, one))
        found = at_once([lambda: outcome(ours, others)] * 2)
        assert_alike_outcomes(found, outcome(torchs, others))

    assert_in_fork(check)
    check()


def assert_alike_outcomes(found, expected):
    for one in found:
        assert [type(t) for t in one] == [type(t) for t in expected]
        assert_close(*[[t for t in ts if not isinstance(t, str)] for ts in (one, expected)])
        assert [t for t in one if isinstance(t, str)] == [t for t in expected if isinstance(t, str)]


@needs_fork
@every_way
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_of_a_data_loader():
    """Forks, of a process that has called the module before."""
    x = torch.linspace(-1, 2, ROWS * COLS).view(ROWS, COLS)

    def run(nn):
        norms = nn.LayerNorm(COLS), nn.RMSNorm(COLS, eps=1e-5)
        call = lambda row: [norm(row).detach() for norm in norms]  # noqa: E731
        return *call(x), *from_workers(call, x)

    assert_close(run(rownorm.nn), run(torch.nn))


@needs_fork
def test_a_fork_while_a_thread_loads_the_extension_for_cpus():
    """It does not wait for a thread that it does not have."""
    with cpu_native._lock:
        assert_in_fork(cpu_native.reason)


@needs_fork
@pytest.mark.parametrize("name", ["execute._launch_lock", "eager.native._lock"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_a_thread_makes_the_first_launch(name, monkeypatch):
    """A thread imports Triton, builds or installs an extension. Its fork makes the first launch without it."""
    held, end = threading.Event(), threading.Event()

    def hold():
        with operator.attrgetter(name)(ops):
            held.set()
            end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        monkeypatch.setattr(execute, "_launch", None)
        monkeypatch.setattr(execute, "_before_first_launch", [lambda _: eager.native._connect()])
        assert_in_fork(execute.launch_layer)
    finally:
        end.set()
        thread.join()


@needs_fork
def test_a_new_process(monkeypatch):
    """It gets modules and tensors, makes the first calls in threads, and forks."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # as for a user
    # torch refuses backward in a fork where the parent has a GPU.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    modules, others = (
        [nn.LayerNorm(COLS), nn.RMSNorm(COLS, eps=1e-5)] for nn in (rownorm.nn, torch.nn)
    )
    x = torch.linspace(-1, 2, ROWS * COLS).view(ROWS, COLS).share_memory_()
    process = multiprocessing.get_context("spawn").Process(
        target=in_a_new_process, args=(modules, others, x)
    )
    process.start()
    process.join(240)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0
