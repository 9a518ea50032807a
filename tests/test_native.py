"""The extension in C: what it passes to the driver, what it leaves to Python, and that both give the same."""

import contextlib
import ctypes
import gc
import json
import os
import shutil
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from compiled import said

import rownorm
from rownorm import launch
from rownorm.launch import launcher, native
from rownorm.ops import eager, execute, library

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)
ERROR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
# From cuda.h: CUlaunchAttributeID.
COOPERATIVE, CLUSTER_DIMENSION, CLUSTER_POLICY = 2, 4, 5
SPREAD = 1
STREAM = 1 << 40

needs_compiler = pytest.mark.skipif(
    (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")) is None,
    reason="there is no C compiler",
)
needs_interpreter = pytest.mark.skipif(
    not execute.INTERPRETING, reason="kernels run on the CPU only in Triton's interpreter"
)
pytestmark = needs_compiler


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("n_attributes", ctypes.c_uint),
    )


class Driver:
    """Stands where the CUDA driver does. ``on_launch(function, parameters)`` may read what a kernel would."""

    def __init__(self, module):
        self.launched, self.result, self.context, self.on_launch = [], 0, 8, None
        self.callbacks = (LAUNCH(self.launch), ERROR(self.error), CONTEXT(self.current))
        addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in self.callbacks]
        native.connect(module, *addresses)

    def launch(self, config, function, parameters, _extra):
        c = ctypes.cast(config, ctypes.POINTER(Config))[0]
        attributes = [
            (c.attributes[i].id, *c.attributes[i].value[:3]) for i in range(c.n_attributes)
        ]
        self.launched.append(
            (function, (*c.grid,), (*c.block,), c.shared, c.stream, attributes, parameters)
        )
        try:
            if self.on_launch is not None:
                self.on_launch(function, parameters)
        except Exception:  # what the driver raises cannot pass through C
            traceback.print_exc()
            return -1
        return self.result

    @staticmethod
    def error(_code, text):
        text[0] = b"out of luck"
        return 0

    def current(self, context):
        context[0] = self.context
        return 0


@pytest.fixture
def driver(monkeypatch):
    execute._launch()  # what is done once, with what is really there
    real = native.load() is not None
    module = native.build()  # where there is a compiler, it builds
    monkeypatch.setattr(native, "_load", lambda: (module, ""))
    driver = Driver(module)
    driver.module = module
    module.use(current_stream=lambda device: STREAM + device, current_device=lambda: 0)
    yield driver
    monkeypatch.undo()
    if real:
        native._load.cache_clear()
        native.load()


def words(parameters, kinds):
    return [ctypes.cast(parameters[i], ctypes.POINTER(kind))[0] for i, kind in enumerate(kinds)]


POINTER, INTEGER = ctypes.c_uint64, ctypes.c_int32
KERNEL = native.Kernel(
    1234, 7, 4, 1024, False, 1, ((1, 0), (0, 0), (-1, -5), (2, 0), (-1, 1 << 40))
)


def simple_run(otherwise=None, device=0, kernels=(KERNEL,), returned=(-1, 0), fixed=()):
    return native.run(
        1, [lambda: torch.zeros(5)], list(fixed), returned, kernels, device, otherwise
    )


def test_a_launch_as_the_driver_sees_it(driver):
    kinds = (POINTER, POINTER, INTEGER, POINTER, ctypes.c_int64)
    read = []
    driver.on_launch = lambda _, parameters: read.append(words(parameters, kinds))
    fixed = torch.zeros(3)
    run = simple_run(fixed=[fixed], device=1)
    nothing, made = run((None,), [64])
    assert nothing is None
    assert read == [[made.data_ptr(), 64, -5, fixed.data_ptr(), 1 << 40]]
    assert driver.launched[0][:6] == (1234, (7, 1, 1), (128, 1, 1), 1024, STREAM + 1, [])
    again = run((None,), [None])[1]
    assert again is not made
    assert read[1] == [again.data_ptr(), 0, -5, fixed.data_ptr(), 1 << 40]


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("cluster", [1, 2, 8])
def test_attributes_are_those_of_tritons_launcher(cooperative, cluster, driver):
    run = simple_run(kernels=[KERNEL._replace(cooperative=cooperative, cluster_size=cluster)])
    run((None,), [64])
    _, grid, _, _, _, attributes, _ = driver.launched[0]
    expected = [(COOPERATIVE, 1, 0, 0)] if cooperative else []
    if cluster > 1:
        expected += [(CLUSTER_DIMENSION, cluster, 1, 1), (CLUSTER_POLICY, SPREAD, 0, 0)]
    assert grid == (7 * cluster, 1, 1)
    assert attributes == expected


def test_large_clusters_are_allowed_once(driver, monkeypatch):
    allowed = []
    monkeypatch.setattr(native, "_allow_large_clusters", allowed.append)
    run = simple_run(kernels=[KERNEL._replace(cluster_size=16)])
    run((None,), [64])
    run((None,), [64])
    assert allowed == [1234]


def test_kernels_start_in_their_order_and_none_is_none(driver):
    simple_run(kernels=[KERNEL, KERNEL._replace(function=5)])((None,), [64])
    assert [launched[0] for launched in driver.launched] == [1234, 5]
    assert simple_run(kernels=[])((None,), [64])[1].shape == (5,)
    assert len(driver.launched) == 2


def test_errors_of_the_driver_have_its_words(driver):
    driver.result = 719
    with pytest.raises(RuntimeError, match=r"out of luck \(719\)"):
        simple_run()((None,), [64])


def test_errors_of_makers_come_through(driver):
    def make():
        raise MemoryError("no room")

    run = native.run(1, [make], [], (0,), [KERNEL], 0, None)
    with pytest.raises(MemoryError, match="no room"):
        run((None,), [64])
    assert not driver.launched


@pytest.mark.parametrize(
    "wrong",
    [
        {"returned": (1,)},
        {"kernels": [KERNEL._replace(parameters=((0, 0),) * 49)]},
        {"kernels": [KERNEL._replace(parameters=((32, 0),))]},
        {"fixed": [torch.zeros(1)] * 31},
    ],
)
def test_what_does_not_fit_is_refused(wrong, driver):
    with pytest.raises(ValueError, match=r"too many|no such place"):
        simple_run(**wrong)


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize(
    ("value", "in_python"),
    [(None, False), (SimpleNamespace(calls=[]), False), (SimpleNamespace(calls=[print]), True)],
)
def test_whoever_asked_to_be_told_of_launches_is_told(hook, value, in_python, driver, monkeypatch):
    monkeypatch.setattr(native.knobs.runtime, hook, value)
    told = []
    run = simple_run(lambda *given: told.append(given) or "python's")
    given, addresses = (None,), [64]
    assert (run(given, addresses) == "python's") == in_python
    assert told == [(given, addresses)] * in_python
    assert len(driver.launched) == (not in_python)


def test_a_thread_without_a_context_takes_tritons_launcher(driver):
    driver.context = None
    assert simple_run(lambda *_: "python's")((None,), [64]) == "python's"


def test_another_current_device(driver):
    guarded = native.guarded(simple_run(), lambda *_: "python's")
    assert guarded((None,), [64])[1].shape == (5,)
    driver.module.use(current_device=lambda: 3)
    assert guarded((None,), [64]) == "python's"


def test_one_device_of_several(driver, monkeypatch):
    """The run asks which is current; on another it is Python that changes to its own."""
    current, entered = [0], []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_of", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    driver.module.use(current_device=lambda: current[0])

    def device(number):
        entered.append(number)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "device", device)
    tensor = SimpleNamespace(get_device=lambda: 0)
    run = execute._on_device(tensor, lambda: simple_run())
    assert native.is_run(run)
    for current[0] in (0, 1):
        assert run((None,), [64])[1].shape == (5,)
    assert entered == [0]
    assert len(driver.launched) == 2


def test_another_order(driver):
    run = native.run(1, [lambda: torch.zeros(5)] * 2, [], (0, -1, 1), [KERNEL], 0, None)
    first, second, third, fourth = native.returning(run, (2, 0, 1, -1))((None,), [64])
    assert (third, fourth) == (None, None)
    assert first.data_ptr() != second.data_ptr()
    driver.context = None
    run = native.run(1, [], [], (-1, -1), [], 0, lambda *_: ("a", "b"))
    assert native.returning(run, (1, -1, 0))((None,), [64]) == ("b", None, "a")


def test_several_threads(driver):
    wrong, kinds = [], (POINTER, POINTER)
    seen = {}

    def on_launch(_, parameters):
        made, given = words(parameters, kinds)
        seen.setdefault(given, set()).add(made)

    driver.on_launch = on_launch
    run = simple_run()

    def work(address):
        for _ in range(200):
            made = run((None,), [address])[1]
            if made.data_ptr() not in seen[address]:
                wrong.append(address)

    threads = [threading.Thread(target=work, args=(64 * i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(driver.launched) == 800


def left_behind(repeat, n=1500):
    """Blocks of memory that a call leaves behind: 1 or more where it leaks. Pools and caches come and go."""
    for _ in range(200):
        repeat()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(n):
        repeat()
    gc.collect()
    return (sys.getallocatedblocks() - before) / n


def test_nothing_leaks(driver):
    run = simple_run(lambda *_: None)

    def repeat():
        run((None,), [64])
        driver.context = None
        run((None,), [64])
        driver.context = 8
        driver.launched.clear()
        native.returning(run, (1,))((None,), [64])

    references = sys.getrefcount(run)
    assert left_behind(repeat) < 0.5
    assert sys.getrefcount(run) == references


def test_a_run_that_is_reached_from_itself_goes(driver):
    class Canary:
        gone = False

        def __del__(self):
            Canary.gone = True

    def cycle():
        canary, around = Canary(), []
        around.append(simple_run(lambda *_: (canary, around)))

    cycle()
    gc.collect()
    assert Canary.gone


# Where it cannot be had, Python does the same.


def test_threads_that_want_the_first_kernel_at_once(monkeypatch):
    """Whoever comes while the extension is built waits for it: it is put in its place once, by one of them."""
    told, together = [], threading.Barrier(2)

    def tell(_launch):
        told.append(threading.get_ident())
        time.sleep(0.1)

    monkeypatch.setattr(execute, "_floor", None)
    monkeypatch.setattr(execute, "_when_launching", [tell])
    monkeypatch.setattr(launch, "on_change", lambda _forget: None)
    with ThreadPoolExecutor(2) as pool:
        floors = list(pool.map(lambda _: (together.wait(), execute._launch())[1], range(2)))
    assert floors == [launch, launch]
    assert len(told) == 1


@pytest.mark.parametrize("setting", ["ROWNORM_NATIVE", "ROWNORM_DIRECT_LAUNCH"])
def test_it_can_be_turned_off(setting, monkeypatch):
    monkeypatch.setenv(setting, "0")
    assert native._load.__wrapped__() == (None, f"{setting} is 0")


@needs_interpreter
def test_not_in_the_interpreter_and_not_without_a_gpu(monkeypatch):
    assert (native.load(), native.reason()) == (None, "Triton interprets")
    monkeypatch.setattr(native.knobs.runtime, "interpret", False)
    assert native._load.__wrapped__() == (None, "there is no NVIDIA GPU")


@pytest.mark.parametrize("what", ["Python.h", "compiler", "libcuda"])
def test_what_is_missing_is_said_to_who_asks(what, monkeypatch, tmp_path, capfd, caplog):
    monkeypatch.setattr(native.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if what == "Python.h":
        monkeypatch.setattr(native.sysconfig, "get_paths", lambda *_: {"include": str(tmp_path)})
    elif what == "compiler":
        monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    else:
        monkeypatch.setattr(native, "build", lambda: None)
        monkeypatch.setattr(native.ctypes, "CDLL", lambda name: SimpleNamespace())
    with caplog.at_level("DEBUG"):
        module, reason = native._load.__wrapped__()
    assert module is None
    assert {"Python.h": "missing", "compiler": "no-compiler", "libcuda": "cuLaunchKernelEx"}[
        what
    ] in reason
    assert reason in caplog.text
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "change",
    [
        {"global_scratch_size": 8},
        {"launch_pdl": True},
        {"profile_scratch_size": None},
        {"name": "Other"},
    ],
)
def test_a_launcher_that_is_not_known_stays_in_python(change, driver, monkeypatch):
    """None: the launcher has no such attribute."""
    attributes = {"global_scratch_size": 0, "profile_scratch_size": 0, "launch_pdl": False} | change
    name = attributes.pop("name", "CudaLauncher")
    launch = {name: value for name, value in attributes.items() if value is not None}
    launch["launch"] = None  # Triton 3.6 has one
    compiled = SimpleNamespace(
        run=type(name, (), launch)(),
        function=77,
        packed_metadata=(4, 1, 512),
        src=SimpleNamespace(signature={"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}),
        asm={
            "ptx": ".entry k(.param .u64 a,.param .u64 b,.param .u32 c,.param .u64 d,.param .u64 e)"
        },
    )

    def kernel(x_ptr, y_ptr, n):
        pass

    kernel.arg_names = kernel.__code__.co_varnames
    kernel.warmup = lambda *_, **options: compiled
    monkeypatch.setattr(launcher, "INTERPRETING", False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    call = launcher.Call(kernel, 3, 4, {"n": 6}, {})
    x = torch.empty(6)
    arguments = ([call], {"x": x}, {"y": lambda: torch.empty(6)}, {}, ("y",), 0)
    assert not native.is_run(launcher.bind_all(*arguments))
    for attribute in ("global_scratch_size", "profile_scratch_size", "launch_pdl"):
        setattr(type(compiled.run), attribute, 0)
    type(compiled.run).__name__ = "CudaLauncher"
    run = launcher.bind_all(*arguments)
    assert native.is_run(run)
    kinds, read = (POINTER, POINTER, INTEGER, POINTER, POINTER), []
    driver.on_launch = lambda _, parameters: read.append(words(parameters, kinds))
    (y,) = run((x,), [x.data_ptr()])
    assert read == [[x.data_ptr(), y.data_ptr(), 6, 0, 0]]
    assert driver.launched[0][:6] == (77, (3, 1, 1), (128, 1, 1), 512, STREAM, [])


# The parameters of kernels that are really compiled.

SIGNATURE = {
    "x_ptr": "*fp16",
    "h_ptr": "constexpr",
    "n": "i32",
    "stride": "i64",
    "ONE": "constexpr",
}
PTX = """.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .u32 kernel_param_1,
	.param .u64 kernel_param_2,
	.param .u64 .ptr .global .align 1 kernel_param_3,
	.param .u64 .ptr .global .align 1 kernel_param_4
)
"""


def test_parameters_are_what_the_kernel_says():
    given = ({"x_ptr": 3, "h_ptr": -1}, {"n": 5, "stride": 7, "m": 1})
    assert native.parameters(SIGNATURE, PTX, *given) == ((3, 0), (-1, 5), (-1, 7), (-1, 0), (-1, 0))


@pytest.mark.parametrize(
    ("old", "new"), [(".u32", ".u64"), (",\n\t.param .u64 kernel_param_2", ""), (".entry", ".func")]
)
def test_a_kernel_that_says_otherwise_is_tritons(old, new):
    with pytest.raises(RuntimeError, match="a kernel takes"):
        native.parameters(SIGNATURE, PTX.replace(old, new), {"x_ptr": 3}, {"n": 5, "stride": 7})


def compiled_parameters() -> dict[str, list]:
    """For every kernel of some norms on sm_90: its parameters, and its arguments that are passed."""
    from rownorm.launch import resources
    from rownorm.program import Program

    seen = {}

    def note(call, dtypes, target):
        compiled = launcher.compile_for(call, dtypes, target.triton)
        places = {f"{role}_ptr": place for place, role in enumerate(call.roles)}
        signature = compiled.src.signature
        found = native.parameters(signature, compiled.asm["ptx"], places, call.integers)
        names = [name for name, kind in signature.items() if kind != "constexpr"]
        values = {**{name: [place, 0] for name, place in places.items()}}
        values |= {name: [-1, value] for name, value in call.integers.items()}
        seen[call.kernel.__name__] = [found, [values[name] for name in names] + [[-1, 0]] * 2]
        return resources.resources(call, compiled)

    resources._compile = note
    program = Program(center=True, eps=1e-5)
    for n_rows, n_cols in (
        (8, 2048),
        (4096, 4096),
        (4096, 32768),
        (64, 65536),
        (1024, 262144),
        (1, 1 << 20),
    ):
        x = torch.empty(n_rows, n_cols, dtype=torch.bfloat16, device="meta")
        weight = x[0].clone()
        for compile_pass in (resources.compile_forward, resources.compile_backward):
            compile_pass(x, None, None, weight, weight, program, resources.TARGETS["sm_90"])
    return seen


def test_parameters_of_compiled_kernels(tmp_path):
    seen = said([__file__], tmp_path)
    assert {
        "forward_resident",
        "forward_looped",
        "forward_cluster",
        "backward_resident",
        "backward_grid",
        "column_sums",
    } <= set(seen)
    for name, (found, expected) in seen.items():
        assert found == expected, name


# The eager autograd function, with kernels that the interpreter runs where the driver would.


@pytest.fixture
def eager_in_c(driver, monkeypatch):
    """Runs of the extension on the CPU: a launch rebuilds tensors from addresses and interprets the kernel."""
    bound, described = [], {}
    bind = launcher.bind

    def remember(call, roles, tensors, device):
        bound.append((call, bind(call, roles, tensors, device), tensors))
        return bound[-1][1]

    def describe(call, _roles, _compiled):
        start, tensors = next((one.start, like) for of, one, like in reversed(bound) if of is call)
        number = len(described) + 1
        described[number] = (start, tensors)
        places = range(len(tensors) - 1)
        parameters = tuple((place, 0) for place in places)
        return native.Kernel(number, call.grid, call.num_warps, 0, False, 1, parameters)

    def tensor_at(address, like):
        if not address or like is None:
            return None
        size = (
            1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
        ) * like.itemsize
        memory = (ctypes.c_char * size).from_address(address)
        flat = torch.frombuffer(memory, dtype=like.dtype)
        return flat.as_strided(like.shape, like.stride())

    def interpret(number, parameters):
        start, like = described[number]
        addresses = words(parameters, [POINTER] * (len(like) - 1))
        tensors = [tensor_at(*pair) for pair in zip(addresses, like[:-1], strict=True)]
        start([*tensors, None], [*addresses, None])

    driver.on_launch = interpret
    python_way = eager._EagerNorm.__dict__["forward"], eager._EagerNorm._backward_cls.apply
    monkeypatch.setattr(launcher, "bind", remember)
    monkeypatch.setattr(launcher, "_described", describe)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    execute._forget()
    eager._in_c(execute._launch())
    driver.in_python = []

    def noted(name, function):
        return lambda *given: driver.in_python.append(name) or function(*given)

    driver.module.use(
        forward_in_python=noted("forward", python_way[0].__func__),
        backward_in_python=noted("backward", eager._EagerNorm.backward),
    )
    yield driver
    eager._EagerNorm.forward, eager._EagerNorm._backward_cls.apply = python_way
    execute._forward_runs.clear()
    execute._backward_runs.clear()


def tensors(*, residual=None, n_rows=4, n_cols=24, dtype=torch.float64):
    x = torch.randn(n_rows, n_cols, dtype=dtype).requires_grad_()
    h = None if residual is None else torch.randn(n_rows, n_cols, dtype=residual).requires_grad_()
    parameters = [torch.randn(n_cols, dtype=dtype).requires_grad_() for _ in range(3)]
    return [t for t in (x, h, *parameters) if t is not None]


def norm(center, given):
    x, *residual, weight, bias, pre_bias = given
    names = ("add_layer_norm", "add_rms_norm") if residual else ("layer_norm", "rms_norm")
    function = getattr(rownorm, names[not center])
    return function(x, *residual, weight, bias, pre_bias=pre_bias)


def long_way(center, given):
    """The same through the operator."""
    x, *residual, weight, bias, pre_bias = given
    name = ("add_" if residual else "") + ("layer_norm" if center else "rms_norm")
    eps = 1e-5 if center else 1e-6
    return getattr(library.operators, name)(x, *residual, weight, bias, pre_bias, eps=eps)


def gradients(outputs, inputs, dy, **options):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, inputs, (dy,) * len(outputs), **options)


def gradients_in_c(given, dy):
    """Of a norm whose kind was met before: the first call of it is Python's."""
    gradients(norm(True, given), given, dy)
    return gradients(norm(True, given), given, dy)


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@needs_interpreter
@pytest.mark.parametrize("residual", [None, torch.float64, torch.float32])
@pytest.mark.parametrize("center", [False, True])
def test_the_usual_call_stays_in_c(center, residual, eager_in_c):
    dtype = torch.float64 if residual != torch.float32 else torch.bfloat16
    given = tensors(residual=residual, dtype=dtype)
    outputs = norm(center, given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    dys = [torch.randn_like(output) for output in outputs]
    expected_outputs = long_way(center, given)
    expected_outputs = (expected_outputs,) if residual is None else expected_outputs
    expected = torch.autograd.grad(expected_outputs, given, dys)
    assert_same(torch.autograd.grad(outputs, given, dys), expected)
    eager_in_c.in_python.clear()
    for _ in range(3):
        again = norm(center, given)
        again = again if isinstance(again, tuple) else (again,)
        assert_same(again, tuple(outputs))
        assert_same(torch.autograd.grad(again, given, dys), expected)
    assert eager_in_c.in_python == []


@needs_interpreter
@pytest.mark.parametrize("residual", [None, torch.float64])
def test_only_what_is_needed_is_made(residual, eager_in_c):
    given = tensors(residual=residual)
    dy = torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(long_way(True, given), given, dy)
    for number, one in enumerate(given):
        for t in given:
            t.requires_grad_(t is one)
        for _ in range(2):
            assert_same(gradients(norm(True, given), one, dy), (expected[number],))
            outputs = norm(True, given)
            node = (outputs if residual is None else outputs[0]).grad_fn
            with torch.no_grad():
                made = node.apply(dy, *([] if residual is None else [dy]))
            assert [t is not None for t in made].count(True) == 1


UNUSUAL = {
    "strided": lambda dy: torch.stack((dy, dy), dim=-1)[..., 0],
    "expanded": lambda dy: dy[:1].expand(dy.shape),
    "misaligned": lambda dy: torch.cat((dy.flatten()[:1], dy.flatten()))[1:].view(dy.shape),
    "negative": lambda dy: torch._neg_view(-dy),
    "subclass": lambda dy: dy.as_subclass(type("Mine", (torch.Tensor,), {})),
}


@needs_interpreter
@pytest.mark.parametrize("how", UNUSUAL)
def test_gradients_that_come_in_otherwise(how, eager_in_c):
    given = tensors()
    usual = torch.randn(4, 24, dtype=torch.float64)
    dys = (UNUSUAL[how](usual), usual)
    expected = [gradients(long_way(True, given), given, dy) for dy in dys]
    for _ in range(3):
        for dy, each in zip(dys, expected, strict=True):
            got = gradients(norm(True, given), given, dy)
            torch.testing.assert_close([*map(torch.Tensor, got)], [*map(torch.Tensor, each)])


@needs_interpreter
def test_no_gradient_of_y(eager_in_c):
    given = tensors(residual=torch.float64)
    dh = torch.randn(4, 24, dtype=torch.float64)
    for _ in range(2):
        got = torch.autograd.grad(norm(False, given)[1], given[:2], dh)
        assert_same(got, torch.autograd.grad(long_way(False, given)[1], given[:2], dh))
    # The second forward was in C; its backward got None, not zeros.
    assert eager_in_c.in_python == ["forward", "backward", "backward"]


@needs_interpreter
def test_a_graph_that_is_kept_and_one_that_is_gone(eager_in_c):
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    y = norm(True, given)
    first = gradients(y, given, dy, retain_graph=True)
    assert_same(gradients(y, given, dy), first)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(y, given, dy)


@needs_interpreter
def test_an_input_that_was_written_to(eager_in_c):
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    gradients(norm(True, given), given, dy)
    y = norm(True, given)
    with torch.no_grad():
        given[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(y, given, dy)


@needs_interpreter
def test_a_parameter_that_moved(eager_in_c):
    """The saved tensor is the same object, at another address."""
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(norm(True, given), given, dy)
    y = norm(True, given)
    given[1].data = given[1].data.clone()
    eager_in_c.in_python.clear()
    assert_same(gradients(y, given, dy), expected)
    assert eager_in_c.in_python == ["backward"]


@needs_interpreter
def test_hooks_on_saved_tensors(eager_in_c):
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients_in_c(given, dy)
    eager_in_c.in_python.clear()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t.clone(), lambda t: t.clone()
    ):
        y = norm(True, given)
    assert packed
    assert_same(gradients(y, given, dy), expected)
    assert eager_in_c.in_python == ["forward", "backward"]


@needs_interpreter
def test_compiled_autograd(eager_in_c):
    """What C left for backward is read by Python, traced."""
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients_in_c(given, dy)
    y = norm(True, given)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        y.backward(dy)
    assert_same([t.grad for t in given], [*expected])


@needs_interpreter
def test_second_derivatives_batches_and_transforms(eager_in_c):
    given = tensors(n_rows=2, n_cols=5)
    norm(True, given).sum().backward()
    assert torch.autograd.gradcheck(lambda *given: norm(True, given), given)
    assert torch.autograd.gradgradcheck(lambda *given: norm(True, given), given)
    dys = torch.randn(3, 2, 5, dtype=torch.float64)
    (batched,) = torch.autograd.grad(norm(True, given), given[0], dys, is_grads_batched=True)
    for dy, dx in zip(dys, batched, strict=True):
        torch.testing.assert_close(gradients(norm(True, given), given[0], dy)[0], dx)
    plain = [t.detach() for t in given]
    loss = lambda *given: norm(True, given).square().sum()  # noqa: E731
    torch.testing.assert_close(
        torch.func.grad(loss)(*plain), torch.autograd.grad(loss(*given), given[0])[0]
    )


@needs_interpreter
def test_changed_plans_are_found_again(eager_in_c):
    """Also by a graph that was made before."""
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients_in_c(given, dy)
    y = norm(True, given)
    asked, find = [], execute.find_backward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "find_backward", lambda *given: asked.append(1) or find(*given))
        assert_same(gradients(norm(True, given), given, dy), expected)
        assert not asked
        with rownorm.launch.force(regime="split", block_cols=8, part_cols=16):
            torch.testing.assert_close(gradients(y, given, dy), expected)
        assert asked


@needs_interpreter
def test_launches_that_somebody_listens_to(eager_in_c, monkeypatch):
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(norm(True, given), given, dy)
    y = norm(True, given)
    hooks = SimpleNamespace(calls=[print])
    monkeypatch.setattr(native.knobs.runtime, "launch_enter_hook", hooks)
    eager_in_c.in_python.clear()
    eager_in_c.launched.clear()
    assert_same(norm(True, given), y)
    assert_same(gradients(y, given, dy), expected)
    assert eager_in_c.in_python == ["forward", "backward"]
    assert not eager_in_c.launched


@needs_interpreter
def test_no_rows(eager_in_c):
    given = tensors(n_rows=0)
    dy = torch.randn(0, 24, dtype=torch.float64)
    for _ in range(2):
        assert_same(
            gradients(norm(True, given), given, dy), gradients(long_way(True, given), given, dy)
        )


@needs_interpreter
def test_bad_input_has_its_words(eager_in_c):
    x = torch.randn(4, 24, requires_grad=True)
    with pytest.raises(ValueError, match="weight must have shape"):
        rownorm.rms_norm(x, torch.randn(5))
    with pytest.raises(TypeError, match="eps"):
        rownorm.rms_norm(x, torch.randn(24), eps=[1])


@needs_interpreter
@pytest.mark.parametrize("residual", [None, torch.float64])
def test_nothing_leaks_from_training(residual, eager_in_c):
    given, dy = tensors(residual=residual, n_rows=1), torch.randn(1, 24, dtype=torch.float64)
    eager_in_c.on_launch = None

    def repeat():
        gradients(norm(True, given), given, dy)
        eager_in_c.launched.clear()

    assert left_behind(repeat) < 0.5


if __name__ == "__main__":
    print(json.dumps(compiled_parameters()))
