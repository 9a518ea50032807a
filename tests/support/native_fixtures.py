"""Fixtures: the extension with a fake driver, and with kernels that the interpreter runs."""

import ctypes

import pytest
import torch

from rownorm.launch import launcher, native
from rownorm.ops import eager, execute
from support.fake_driver import POINTER, STREAM, Driver, read_parameters


@pytest.fixture
def driver(monkeypatch):
    execute.launch_layer()  # before the driver is replaced: it happens once in a process
    real = native.load() is not None
    module = native.build()
    monkeypatch.setattr(native, "_load", lambda: (module, ""))
    driver = Driver(module)
    driver.module = module
    module.use(current_stream=lambda device: STREAM + device, current_device=lambda: 0)
    yield driver
    monkeypatch.undo()
    if real:
        native._load.cache_clear()
        native.load()


@pytest.fixture(scope="session")
def node():
    """The extension in C++."""
    return native.node.build()


@pytest.fixture(params=["c", "c++"])
def eager_in_c(driver, monkeypatch, request):
    """The autograd function in C, and the node in C++, on the CPU.

    A launch rebuilds the tensors from addresses and interprets the kernel.
    """
    bound, described = [], {}
    bind = launcher.bind

    def record(call, roles, tensors, device):
        bound.append((call, bind(call, roles, tensors, device), tensors))
        return bound[-1][1]

    def describe(call, _roles, _compiled):
        start, tensors = next((one.start, like) for of, one, like in reversed(bound) if of is call)
        number = len(described) + 1
        described[number] = (start, tensors)
        parameters = tuple((index, 0) for index in range(len(tensors) - 1))
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
        addresses = read_parameters(parameters, [POINTER] * (len(like) - 1))
        tensors = [tensor_at(*pair) for pair in zip(addresses, like[:-1], strict=True)]
        start([*tensors, None], [*addresses, None])

    driver.on_launch = interpret
    python_functions = eager._EagerNorm.__dict__["forward"], eager._EagerNorm._backward_cls.apply
    monkeypatch.setattr(launcher, "bind", record)
    monkeypatch.setattr(launcher, "_native_kernel", describe)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    execute._forget()
    monkeypatch.setattr(native.node, "load_in_background", lambda install: None)
    eager._install_native(execute.launch_layer())
    driver.in_python = []

    def recorded(name, function):
        return lambda *arguments: driver.in_python.append(name) or function(*arguments)

    driver.module.use(
        forward_in_python=recorded("forward", python_functions[0].__func__),
        backward_in_python=recorded("backward", eager._EagerNorm.backward),
    )
    if request.param == "c++":
        with monkeypatch.context() as patched:
            backward = staticmethod(recorded("backward", eager._EagerNorm.backward))
            patched.setattr(eager._EagerNorm, "backward", backward)
            eager._install_node(driver.module, request.getfixturevalue("node"))
    yield driver
    eager._EagerNorm.forward, eager._EagerNorm._backward_cls.apply = python_functions
    eager._backward, eager.norm_in_c = eager._EagerNorm.backward, eager._not_in_c
    execute._forward_calls.clear()
    execute._backward_calls.clear()
