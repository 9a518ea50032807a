"""Fixtures: the extension with a fake driver, and with kernels that the interpreter runs."""

import ctypes

import pytest
import torch

from rownorm.launch import launcher, native
from rownorm.ops import cpu_native, eager, execute
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
        native._load.cache_clear()  # the module is loaded anew, so that its calls are not those of the old one
        execute._forget()
        eager.native.use_c(execute.launch_layer())


@pytest.fixture(scope="session")
def node():
    """The extension in C++."""
    return native.node.build()


def connect(driver, node, monkeypatch):
    """Call norms through the C, with gradients recorded by the node in C++, or by Python without one, on the CPU.

    A launch rebuilds the tensors from addresses and interprets the kernel. ``in_python`` of the driver lists what
    Python's autograd function did.
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
        if like is None or (like.numel() and not address):
            return None
        if not like.numel():
            return like
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
    monkeypatch.setattr(launcher, "bind", record)
    monkeypatch.setattr(launcher, "_native_kernel", describe)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    execute._forget()
    driver.in_python, driver.has_node = [], node is not None

    def recorded(name, function):
        return lambda *arguments: driver.in_python.append(name) or function(*arguments)

    monkeypatch.setattr(eager, "eager_norm", recorded("forward", eager.eager_norm))
    backward = staticmethod(recorded("backward", eager._EagerNorm.backward))
    monkeypatch.setattr(eager._EagerNorm, "backward", backward)
    monkeypatch.setattr(eager, "native", eager.Native())
    eager.native.use_c(execute.launch_layer())
    if driver.has_node:
        eager.native.use_node(node)


@pytest.fixture(params=["c", "c++"])
def eager_in_c(driver, monkeypatch, request):
    """Norms through the C, and through the C++: ``connect``."""
    node = request.getfixturevalue("node") if request.param == "c++" else None
    connect(driver, node, monkeypatch)
    yield driver
    execute._forward_calls.clear()
    execute._backward_calls.clear()


def connect_cpu(node):
    """Call norms on a CPU through the C and the C++, as a user does once they are loaded."""
    eager.native._use_module(native, native.load_for_cpu())
    eager.native.use_node(node)


# Python alone, C for calls without a gradient, C++ for calls with one; and tensors on a CPU for a user, who has no
# interpreter, before the C and the C++ are loaded and after.
ON_GPU = torch.cuda.is_available()
WAYS = ("python", "c", "c++") if ON_GPU else ("python", "c", "c++", "cpu", "cpu and c++")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Each way that a call can take through the host."""
    name = request.param
    node = request.getfixturevalue("node") if name.endswith("c++") else None
    launch = execute.launch_layer()
    if name in ("c", "c++") and not ON_GPU:
        connect(request.getfixturevalue("driver"), node, monkeypatch)
    else:
        monkeypatch.setattr(eager, "native", eager.Native())
        if name == "python":
            monkeypatch.setattr(native, "_load", lambda: (None, "a test"))
        elif name.startswith("cpu"):
            monkeypatch.setattr(execute, "INTERPRETING", False)
            monkeypatch.setattr(eager, "INTERPRETING", False)
        execute._forget()
        eager.native.use_c(launch)
        eager.native._record_by(eager.eager_norm)
        if name == "cpu and c++":
            connect_cpu(node)
        elif node is not None:
            eager.native.use_node(node)
    yield name
    monkeypatch.undo()
    execute._forget()
    if name == "cpu and c++":
        cpu_native.load().use_allocator(None)  # torch.empty fills memory with NaN in tests
    if ON_GPU:
        eager.native.use_c(launch)
