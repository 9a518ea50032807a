"""Prepared calls in C: what they pass to the driver, and when they call the Python function."""

import contextlib
import ctypes
import gc
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rownorm.launch import backward, force, forward, native, plan
from rownorm.launch.device import DEVICES
from rownorm.launch.problem import backward_problem, forward_problem, without_values
from rownorm.ops import execute
from rownorm.program import BACKWARD_INPUTS, GRADIENTS, INPUTS, RESULTS, Inputs, Program
from support.fake_driver import (
    CLUSTER_DIMENSION,
    CLUSTER_POLICY,
    COOPERATIVE,
    INTEGER,
    KERNEL,
    POINTER,
    SPREAD,
    STREAM,
    leaked_blocks,
    needs_compiler,
    read_parameters,
    simple_call,
)
from support.regimes import REGIMES

pytestmark = needs_compiler


def test_a_launch_passes_parameters_and_configuration(driver):
    kinds = (POINTER, POINTER, INTEGER, POINTER, ctypes.c_int64)
    read = []
    driver.on_launch = lambda _, parameters: read.append(read_parameters(parameters, kinds))
    call = simple_call(device=1)
    nothing, allocated = call((None,), [64])
    assert nothing is None
    assert read == [[allocated.data_ptr(), 64, -5, 64, 1 << 40]]
    assert driver.launched[0][:6] == (1234, (7, 1, 1), (128, 1, 1), 1024, STREAM + 1, [])
    again = call((None,), [None])[1]
    assert again is not allocated
    assert read[1] == [again.data_ptr(), 0, -5, 0, 1 << 40]


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("cluster", [1, 2, 8])
def test_attributes_are_those_of_tritons_launcher(cooperative, cluster, driver):
    call = simple_call(kernels=[KERNEL._replace(cooperative=cooperative, cluster_size=cluster)])
    call((None,), [64])
    _, grid, _, _, _, attributes, _ = driver.launched[0]
    expected = [(COOPERATIVE, 1, 0, 0)] if cooperative else []
    if cluster > 1:
        expected += [(CLUSTER_DIMENSION, cluster, 1, 1), (CLUSTER_POLICY, SPREAD, 0, 0)]
    assert grid == (7 * cluster, 1, 1)
    assert attributes == expected


def test_large_clusters_are_allowed_once(driver, monkeypatch):
    allowed = []
    monkeypatch.setattr(native, "_allow_large_clusters", allowed.append)
    call = simple_call(kernels=[KERNEL._replace(cluster_size=16)])
    call((None,), [64])
    call((None,), [64])
    assert allowed == [1234]


def test_kernels_start_in_their_order_and_there_may_be_none(driver):
    simple_call(kernels=[KERNEL, KERNEL._replace(function=5)])((None,), [64])
    assert [launched[0] for launched in driver.launched] == [1234, 5]
    assert simple_call(kernels=[])((None,), [64])[1].shape == (5,)
    assert len(driver.launched) == 2


def test_errors_of_the_driver_have_its_text(driver):
    driver.result = 719
    with pytest.raises(RuntimeError, match=r"a test error \(719\)"):
        simple_call()((None,), [64])


def test_errors_of_allocators_are_raised(driver):
    def allocate():
        raise MemoryError("out of memory")

    call = native.prepare(1, [allocate], (0,), [KERNEL], 0, None)
    with pytest.raises(MemoryError, match="out of memory"):
        call((None,), [64])
    assert not driver.launched


@pytest.mark.parametrize(
    "wrong",
    [
        {"returned": (1,)},
        {"kernels": [KERNEL._replace(parameters=((0, 0),) * 65)]},
        {"kernels": [KERNEL._replace(parameters=((32, 0),))]},
    ],
)
def test_too_many_tensors_or_parameters_are_refused(wrong, driver):
    with pytest.raises(ValueError, match=r"too many|out of range"):
        simple_call(**wrong)


def limit(name):
    """A limit of the C and C++."""
    header = Path(native.__file__).with_name("prepared_call.h").read_text()
    return int(re.search(rf"{name} = (\d+)", header)[1])


def test_as_many_tensors_as_there_is_place_for(driver):
    most, returns = limit("MAX_TENSORS"), limit("MAX_RETURNED")

    def prepared(n_inputs, n_allocated, n_returned):
        allocators = [lambda: torch.zeros(5)] * n_allocated
        return native.prepare(n_inputs, allocators, (-1,) * n_returned, [KERNEL], 0, None)

    for n_inputs in (1, most - 1):
        assert len(prepared(n_inputs, most - n_inputs, 1)((None,) * n_inputs, [64] * n_inputs)) == 1
        with pytest.raises(ValueError, match="too many tensors"):
            prepared(n_inputs, most - n_inputs + 1, 1)
    for wrong in ((-1, 1, 1), (1, 1, returns + 1)):
        with pytest.raises(ValueError, match="too many tensors"):
            prepared(*wrong)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_largest_calls_are_not_too_large(regime):
    """With a gradient of every tensor, they are made in C, too."""
    rows = torch.empty(64, 4096, 1024, dtype=torch.bfloat16, device="meta")
    shapes = {"rows": rows, "columns": rows[0, 0], "samples": rows[:, :1]}
    inputs = Inputs(*(shapes[one.extent] for one in INPUTS.values()))
    program = Program(True, 1e-5, activation="gelu", gate_activation="silu")
    device = DEVICES["sm_90"]
    saved, wanted = without_values(inputs, program), (True,) * len(inputs)
    forward_of = forward_problem(inputs, program, device)
    backward_of = backward_problem(saved, program, True, wanted, device)
    with force(regime=regime):
        steps = (
            forward.steps(forward_of, plan(forward_of), inputs, program, True),
            backward.steps(backward_of, plan(backward_of), saved, program, True, wanted),
        )
    sizes = [len(one.tensors) + len(one.allocated) for one in steps]
    assert sizes[1] >= len(BACKWARD_INPUTS) + len(GRADIENTS)
    assert max(sizes) <= limit("MAX_TENSORS")
    assert max(len(GRADIENTS), len(RESULTS)) <= limit("MAX_RETURNED")


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize(
    ("value", "in_python"),
    [(None, False), (SimpleNamespace(calls=[]), False), (SimpleNamespace(calls=[print]), True)],
)
def test_launch_hooks_are_called_from_python(hook, value, in_python, driver, monkeypatch):
    monkeypatch.setattr(native.knobs.runtime, hook, value)
    passed = []
    call = simple_call(lambda *arguments: passed.append(arguments) or "in Python")
    inputs, addresses = (None,), [64]
    assert (call(inputs, addresses) == "in Python") == in_python
    assert passed == [(inputs, addresses)] * in_python
    assert len(driver.launched) == (not in_python)


def test_a_thread_without_a_context_uses_tritons_launcher(driver):
    driver.context = None
    assert simple_call(lambda *_: "in Python")((None,), [64]) == "in Python"


def test_with_another_current_device_python_does_the_call(driver):
    checked = native.checking_device(simple_call(), lambda *_: "in Python")
    assert checked((None,), [64])[1].shape == (5,)
    driver.module.use(current_device=lambda: 3)
    assert checked((None,), [64]) == "in Python"


def test_with_several_devices_python_switches_to_the_one_of_the_call(driver, monkeypatch):
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
    call = execute._on_device(tensor, lambda: simple_call())
    assert native.is_native(call)
    for current[0] in (0, 1):
        assert call((None,), [64])[1].shape == (5,)
    assert entered == [0]
    assert len(driver.launched) == 2


def test_results_in_another_order(driver):
    call = native.prepare(1, [lambda: torch.zeros(5)] * 2, (0, -1, 1), [KERNEL], 0, None)
    first, second, third, fourth = native.reordered(call, (2, 0, 1, -1))((None,), [64])
    assert (third, fourth) == (None, None)
    assert first.data_ptr() != second.data_ptr()
    driver.context = None
    call = native.prepare(1, [], (-1, -1), [], 0, lambda *_: ("a", "b"))
    assert native.reordered(call, (1, -1, 0))((None,), [64]) == ("b", None, "a")


def test_several_threads(driver):
    wrong, kinds = [], (POINTER, POINTER)
    seen = {}

    def on_launch(_, parameters):
        output, input = read_parameters(parameters, kinds)
        seen.setdefault(input, set()).add(output)

    driver.on_launch = on_launch
    call = simple_call()

    def work(address):
        for _ in range(200):
            output = call((None,), [address])[1]
            if output.data_ptr() not in seen[address]:
                wrong.append(address)

    threads = [threading.Thread(target=work, args=(64 * i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(driver.launched) == 800


def test_nothing_leaks(driver):
    call = simple_call(lambda *_: None)

    def repeat():
        call((None,), [64])
        driver.context = None
        call((None,), [64])
        driver.context = 8
        driver.launched.clear()
        native.reordered(call, (1,))((None,), [64])

    references = sys.getrefcount(call)
    assert leaked_blocks(repeat) < 0.5
    assert sys.getrefcount(call) == references


def test_a_call_in_a_reference_cycle_is_collected(driver):
    class Canary:
        gone = False

        def __del__(self):
            Canary.gone = True

    def cycle():
        canary, around = Canary(), []
        around.append(simple_call(lambda *_: (canary, around)))

    cycle()
    gc.collect()
    assert Canary.gone
