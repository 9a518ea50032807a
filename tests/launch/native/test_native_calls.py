"""Prepared calls in C: what they pass to the driver, and when they call the Python function."""

import contextlib
import ctypes
import gc
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from fake_driver import (
    CLUSTER_DIMENSION,
    CLUSTER_POLICY,
    COOPERATIVE,
    INTEGER,
    KERNEL,
    POINTER,
    SPREAD,
    STREAM,
    left_behind,
    needs_compiler,
    simple_call,
    words,
)

from rownorm.launch import native
from rownorm.ops import execute

pytestmark = needs_compiler


def test_a_launch_as_the_driver_sees_it(driver):
    kinds = (POINTER, POINTER, INTEGER, POINTER, ctypes.c_int64)
    read = []
    driver.on_launch = lambda _, parameters: read.append(words(parameters, kinds))
    fixed = torch.zeros(3)
    run = simple_call(fixed=[fixed], device=1)
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
    run = simple_call(kernels=[KERNEL._replace(cooperative=cooperative, cluster_size=cluster)])
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
    run = simple_call(kernels=[KERNEL._replace(cluster_size=16)])
    run((None,), [64])
    run((None,), [64])
    assert allowed == [1234]


def test_kernels_start_in_their_order_and_none_is_none(driver):
    simple_call(kernels=[KERNEL, KERNEL._replace(function=5)])((None,), [64])
    assert [launched[0] for launched in driver.launched] == [1234, 5]
    assert simple_call(kernels=[])((None,), [64])[1].shape == (5,)
    assert len(driver.launched) == 2


def test_errors_of_the_driver_have_its_words(driver):
    driver.result = 719
    with pytest.raises(RuntimeError, match=r"out of luck \(719\)"):
        simple_call()((None,), [64])


def test_errors_of_makers_come_through(driver):
    def make():
        raise MemoryError("no room")

    run = native.prepare(1, [make], [], (0,), [KERNEL], 0, None)
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
    with pytest.raises(ValueError, match=r"too many|out of range"):
        simple_call(**wrong)


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize(
    ("value", "in_python"),
    [(None, False), (SimpleNamespace(calls=[]), False), (SimpleNamespace(calls=[print]), True)],
)
def test_whoever_asked_to_be_told_of_launches_is_told(hook, value, in_python, driver, monkeypatch):
    monkeypatch.setattr(native.knobs.runtime, hook, value)
    told = []
    run = simple_call(lambda *given: told.append(given) or "python's")
    given, addresses = (None,), [64]
    assert (run(given, addresses) == "python's") == in_python
    assert told == [(given, addresses)] * in_python
    assert len(driver.launched) == (not in_python)


def test_a_thread_without_a_context_takes_tritons_launcher(driver):
    driver.context = None
    assert simple_call(lambda *_: "python's")((None,), [64]) == "python's"


def test_another_current_device(driver):
    guarded = native.checking_device(simple_call(), lambda *_: "python's")
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
    run = execute._on_device(tensor, lambda: simple_call())
    assert native.is_native(run)
    for current[0] in (0, 1):
        assert run((None,), [64])[1].shape == (5,)
    assert entered == [0]
    assert len(driver.launched) == 2


def test_another_order(driver):
    run = native.prepare(1, [lambda: torch.zeros(5)] * 2, [], (0, -1, 1), [KERNEL], 0, None)
    first, second, third, fourth = native.reordered(run, (2, 0, 1, -1))((None,), [64])
    assert (third, fourth) == (None, None)
    assert first.data_ptr() != second.data_ptr()
    driver.context = None
    run = native.prepare(1, [], [], (-1, -1), [], 0, lambda *_: ("a", "b"))
    assert native.reordered(run, (1, -1, 0))((None,), [64]) == ("b", None, "a")


def test_several_threads(driver):
    wrong, kinds = [], (POINTER, POINTER)
    seen = {}

    def on_launch(_, parameters):
        made, given = words(parameters, kinds)
        seen.setdefault(given, set()).add(made)

    driver.on_launch = on_launch
    run = simple_call()

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


def test_nothing_leaks(driver):
    run = simple_call(lambda *_: None)

    def repeat():
        run((None,), [64])
        driver.context = None
        run((None,), [64])
        driver.context = 8
        driver.launched.clear()
        native.reordered(run, (1,))((None,), [64])

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
        around.append(simple_call(lambda *_: (canary, around)))

    cycle()
    gc.collect()
    assert Canary.gone
