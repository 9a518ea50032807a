"""Fixtures: the extension with a fake driver, and with kernels that the interpreter runs."""

import ctypes

import pytest
import torch
from fake_driver import POINTER, STREAM, Driver, words

from rownorm.launch import launcher, native
from rownorm.ops import eager, execute


@pytest.fixture
def driver(monkeypatch):
    execute.launch_layer()  # what is done once, with what is really there
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
    monkeypatch.setattr(launcher, "_native_kernel", describe)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    execute._forget()
    eager._install_native(execute.launch_layer())
    driver.in_python = []

    def noted(name, function):
        return lambda *given: driver.in_python.append(name) or function(*given)

    driver.module.use(
        forward_in_python=noted("forward", python_way[0].__func__),
        backward_in_python=noted("backward", eager._EagerNorm.backward),
    )
    yield driver
    eager._EagerNorm.forward, eager._EagerNorm._backward_cls.apply = python_way
    execute._forward_calls.clear()
    execute._backward_calls.clear()
