"""How a kernel is launched: directly with known versions of Triton, through its public interface with others."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from rownorm.launch import launcher
from rownorm.launch.rows import allocator
from support.planning import calls, problem

ROLES = {"x": 0, "y": 1}
INDICES = (1, -1, 0)  # of y, absent and x in TENSORS
TENSORS = (torch.empty(5), torch.empty(5), None)
ADDRESSES = [32, 64, None]


class CudaLauncher:
    """A double of Triton's launcher that records its calls."""

    global_scratch_size = 0

    def __init__(self):
        self.launched, self.called = [], []

    def launch(self, *arguments):
        self.launched.append(arguments)

    def __call__(self, *arguments):
        self.called.append(arguments)


def kernel(y_ptr, absent_ptr, x_ptr, n_cols, n_rows, BLOCK, ALIGN):
    """Never runs. The order of its arguments is its own."""


kernel.arg_names = kernel.__code__.co_varnames
METADATA = (4, 1, 1024)  # warps, programs per cluster, shared memory
CALL = launcher.Call(kernel, 7, 4, {"n_rows": 3, "n_cols": 5}, {"ALIGN": 1, "BLOCK": 8})


@pytest.fixture
def start(monkeypatch):
    """A function that binds ``CALL`` for a version of Triton and returns (launcher, start, public calls)."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 99, raising=False)

    def bind(version, call=CALL):
        known = tuple(int(part) for part in version.split(".")[:2])
        monkeypatch.setattr(launcher, "VERSION", known)
        run, public = CudaLauncher(), []
        compiled = SimpleNamespace(run=run, function="function", packed_metadata=METADATA)
        compiled.launch_metadata = lambda *arguments: ("launch metadata", *arguments)
        direct = launcher._direct(call, compiled, INDICES, 0, lambda *passed: public.append(passed))
        return run, direct, public

    return bind


class LoadsLate:
    """Like Triton's compiled kernel: shared by all threads, and its launcher exists before its function."""

    packed_metadata, function, launcher = METADATA, None, None

    @property
    def run(self):
        if self.launcher is None:
            self.launcher = CudaLauncher()
            time.sleep(0.05)
            self.function = "function"
        return self.launcher


def test_threads_that_bind_one_kernel_at_once(monkeypatch):
    """No thread launches a kernel before it is loaded."""
    monkeypatch.setattr(launcher, "INTERPRETING", False)
    monkeypatch.setattr(launcher, "VERSION", (3, 6))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 99, raising=False)
    compiled = LoadsLate()
    monkeypatch.setattr(kernel, "warmup", lambda *_, **options: compiled, raising=False)
    together = threading.Barrier(4)

    def bind_and_start(_):
        together.wait()
        launcher.bind(CALL, ROLES, TENSORS, 0).start(TENSORS, ADDRESSES)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(bind_and_start, range(4)))
    assert [arguments[4] for arguments in compiled.run.launched] == ["function"] * 4


def test_call_orders_by_the_kernel():
    assert CALL.roles == ("y", "absent", "x")
    assert CALL.ordered(CALL.integers) == (5, 3)
    assert CALL.ordered(CALL.constants) == (8, 1)


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "4.0.0"])
def test_an_unknown_triton_is_not_started_directly(version, start):
    assert start(version)[1] is None


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.9.0"])
def test_a_known_triton_gets_pointers_in_the_order_of_the_kernel(version, start):
    run, direct, public = start(version)
    direct(TENSORS, ADDRESSES)
    (arguments,) = run.launched or run.called
    assert bool(run.launched) == (version == "3.6.0")
    assert arguments[:5] == (7, 1, 1, 99, "function")
    assert arguments[-7:] == (64, None, 32, 5, 3, 8, 1)
    assert METADATA in arguments
    assert not public


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_launch_hooks_are_called(hook, start, monkeypatch):
    run, direct, public = start("3.6.0")
    hooks = SimpleNamespace(calls=[print])
    monkeypatch.setattr(launcher.knobs.runtime, hook, hooks)
    direct(TENSORS, ADDRESSES)
    assert public == [(TENSORS, ADDRESSES)]
    assert not run.launched


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1"])
def test_the_launcher_gets_the_cluster_size(version, start):
    run, direct, _ = start(version, CALL._replace(cluster_size=8))
    direct(TENSORS, ADDRESSES)
    (arguments,) = run.launched or run.called
    assert (4, 8, 1024) in arguments
    assert METADATA not in arguments


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_cooperative_launch_is_requested(cooperative, start):
    """In Triton 3.6 by the first flag of the launch, in later versions when the kernel is compiled."""
    call = CALL._replace(cooperative=cooperative)
    run, direct, _ = start("3.6.0", call)
    direct(TENSORS, ADDRESSES)
    assert run.launched[0][5:7] == (cooperative, False)
    assert call.options.get("launch_cooperative_grid", False) == cooperative


def test_the_public_interface_gets_every_option(monkeypatch):
    """The compiled and the launched kernel are the same, including maxnreg and the cooperative launch."""
    started_with = []

    class Kernel:
        arg_names = kernel.arg_names

        def __getitem__(self, grid):
            return lambda *arguments, **options: started_with.append((grid, arguments, options))

    monkeypatch.setattr(launcher, "INTERPRETING", False)
    monkeypatch.setattr(launcher, "DIRECT", False)
    call = CALL._replace(kernel=Kernel(), maxnreg=128, cooperative=True)
    launcher.bind(call, ROLES, TENSORS, 0).start(TENSORS, ADDRESSES)
    ((grid, arguments, options),) = started_with
    assert (grid, arguments[3:]) == ((7,), (5, 3, 8, 1))
    assert options == {
        "num_warps": 4,
        "enable_fp_fusion": True,
        "maxnreg": 128,
        "launch_cooperative_grid": True,
    }


def test_clusters_call_launch_hooks_and_start_directly(start, monkeypatch):
    run, direct, public = start("3.6.0", CALL._replace(cluster_size=2))
    hooks = SimpleNamespace(calls=[print])
    monkeypatch.setattr(launcher.knobs.runtime, "launch_enter_hook", hooks)
    direct(TENSORS, ADDRESSES)
    (arguments,) = run.launched
    assert hooks in arguments
    assert any(isinstance(each, tuple) and each[0] == "launch metadata" for each in arguments)
    assert not public


def test_clusters_have_no_public_interface(monkeypatch):
    monkeypatch.setattr(launcher, "DIRECT", False)
    with pytest.raises(RuntimeError, match="clusters need a direct launch"):
        launcher.bind(CALL._replace(cluster_size=2), ROLES, TENSORS, 0)


def test_tensors_in_the_order_of_their_roles(monkeypatch):
    """Inputs, outputs, and None for absent ones."""
    started = []
    bound = launcher.Call(kernel, 1, 4, {}, {})
    ready = launcher.Bound(lambda *passed: started.append(passed))
    monkeypatch.setattr(launcher, "bind", lambda *_: ready)
    x = torch.empty(5)
    prepared = launcher.bind_all(
        [bound, bound],
        {"x": x, "residual": None},
        {"y": lambda: torch.zeros(5)},
        ("h", "y"),
        0,
    )
    nothing, y = prepared((x, None), [x.data_ptr(), None])
    assert nothing is None
    assert len(started) == 2
    for tensors, addresses in started:
        assert all(one is other for one, other in zip(tensors, (x, None, y, None), strict=True))
        assert addresses == [x.data_ptr(), None, y.data_ptr(), None]


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 5), (0, 4)])
def test_allocated_tensors_are_like_those_of_torch_empty(shape, fill, device):
    torch.utils.deterministic.fill_uninitialized_memory = fill
    on = torch.empty(0, device=device).device
    new = allocator(torch.Size(shape), torch.float16, on)
    first, second = new(), new()
    like = torch.empty(shape, dtype=torch.float16, device=device)
    for t in (first, second):
        assert (t.shape, t.stride(), t.dtype, t.device) == (
            like.shape,
            like.stride(),
            like.dtype,
            on,
        )
        assert not t.requires_grad
        assert not fill or t.isnan().all()
    assert not t.numel() or first.data_ptr() != second.data_ptr()


def test_every_kernel_says_whether_products_and_sums_are_fused():
    """Else a variable, or the default of another version of Triton, would decide."""
    for direction in ("forward", "backward"):
        for n_cols in (64, 32768, 1 << 20):
            for one in calls(problem(direction, n_cols=n_cols)):
                assert one.options["enable_fp_fusion"] is True


def test_rounded_steps_are_not_fused():
    """Else the compiler computes a product that is rounded to fp16 in fp16, together with the sum that follows."""
    for n_cols in (64, 32768, 1 << 20):
        for one in calls(problem(n_cols=n_cols, rounds_each=True)):
            assert one.options["enable_fp_fusion"] is False
