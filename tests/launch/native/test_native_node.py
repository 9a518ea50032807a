"""The node in C++: how it is built, and what a user sees of it. test_native_eager.py has its results."""

import os
import threading

import pytest
import torch

import rownorm
from rownorm import extension
from rownorm.launch import native
from rownorm.ops import cpu_native, eager, execute
from rownorm.program import INPUTS
from support.fake_driver import needs_interpreter

pytestmark = needs_interpreter


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A function that makes the C++ compiler a script; its last argument is the file to write."""

    def use(*lines):
        script = tmp_path / "compiler"
        head = (
            "#!/bin/sh",
            'test "$1" = --version && exec echo "my compiler 1.0"',
            "for file; do :; done",
        )
        script.write_text("\n".join((*head, *lines)))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        return tmp_path / "cache"

    return use


@pytest.fixture
def background(monkeypatch):
    """The state of the background build, as in a new process."""
    monkeypatch.setattr(native.node, "_thread", None)
    monkeypatch.setattr(
        native.node, "_state", "no norm with gradients that it can record was called yet"
    )


@pytest.fixture
def cpu(monkeypatch):
    """Tensors on the CPU are computed by their extension rather than in Triton's interpreter."""
    monkeypatch.setattr(execute, "INTERPRETING", False)
    monkeypatch.setattr(eager, "INTERPRETING", False)
    monkeypatch.setattr(eager, "native", eager.Native())
    yield
    cpu_native.load().use_allocator(None)  # torch.empty fills memory with NaN in tests


def test_it_is_compiled_once(node, monkeypatch):
    monkeypatch.setattr(extension.compilers, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert native.node.build().__file__ == node.__file__


def test_a_failing_compiler_leaves_nothing_and_is_named(compiler, background):
    cache = compiler("echo 'node.cpp:3: error: no such type'", 'echo half > "$file"', "exit 1")
    installed = []
    native.node.load_in_background(installed.append)
    assert not native.node.wait()
    assert "compiler failed: node.cpp:3: error: no such type; see " in native.node.reason()
    assert installed == []
    left = {path.name for path in cache.rglob("*") if path.is_file()}
    assert left == {"lock", "failed.txt"}


def test_it_is_compiled_at_low_priority(compiler, background):
    cache = compiler("nice", "exit 1")
    native.node.load_in_background(pytest.fail)
    native.node.wait()
    (failed,) = cache.rglob("failed.txt")
    assert int(failed.read_text().split()[-1]) == min(os.nice(0) + 10, 19)


def test_no_thread_can_be_started(background, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    native.node.load_in_background(pytest.fail)
    assert not native.node.wait()
    assert native.node.reason() == "can't start new thread"


def test_without_a_compiler(background, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: None)
    native.node.load_in_background(pytest.fail)
    native.node.wait()
    assert "CXX" in native.node.reason()


def test_the_reason_while_it_is_built(cpu, background, node, monkeypatch):
    """The first norm with gradients changes it."""
    may_end = threading.Event()
    monkeypatch.setattr(native.node, "build", lambda: may_end.wait(60) and node)
    rownorm.rms_norm(torch.randn(4, 24, requires_grad=True))
    assert native.node.reason() == "it is being built"
    may_end.set()
    assert native.node.wait()
    assert native.node.reason() == ""


def test_a_setting_turns_it_off(background, monkeypatch):
    monkeypatch.setenv("ROWNORM_NODE", "0")
    native.node.load_in_background(pytest.fail)
    assert not native.node.wait()
    assert native.node.reason() == "ROWNORM_NODE is 0"


def test_it_is_installed_from_a_thread(background, node):
    installed = []
    native.node.load_in_background(installed.append)
    assert native.node.wait()
    assert native.node.reason() == ""
    assert [module.__file__ for module in installed] == [node.__file__]


def test_the_first_norm_with_gradients_has_it_built(cpu, background, node, monkeypatch):
    """The first, not the second: every call after it can be native."""
    started = []
    monkeypatch.setattr(native.node, "load_in_background", started.append)
    x = torch.randn(4, 24)
    rownorm.rms_norm(x)
    assert started == []
    assert native.node.reason() == "no norm with gradients that it can record was called yet"
    x.requires_grad_()
    y = rownorm.rms_norm(x)
    (install,) = started
    assert y.grad_fn.name() != "NormBackward"
    rownorm.rms_norm(x)
    assert started == [install]
    install(node)
    assert rownorm.rms_norm(x).grad_fn.name() == "NormBackward"


@pytest.mark.parametrize("eager_in_c", ["c++"], indirect=True)
def test_its_name_and_its_edges(eager_in_c):
    x, weight = torch.randn(4, 24).requires_grad_(), torch.randn(24)
    y = rownorm.rms_norm(x, weight)
    assert y.grad_fn.name() == "NormBackward"
    assert isinstance(y.grad_fn, torch.autograd.graph.Node)
    assert "grad_fn=<NormBackward>" in repr(y)
    assert [edge is not None for edge, _ in y.grad_fn.next_functions] == [True] + (
        len(INPUTS) - 1
    ) * [False]


@pytest.mark.parametrize("eager_in_c", ["c++"], indirect=True)
def test_it_refuses_gradients_that_are_not_of_its_output(eager_in_c):
    """Autograd never passes such ones, but a node of C++ can be called."""
    x = torch.randn(4, 24).requires_grad_()
    y = rownorm.rms_norm(x)
    with torch.no_grad():
        y.grad_fn(torch.randn(4, 24))
        for wrong in (torch.randn(3, 24), torch.randn(4, 24, dtype=torch.float64)):
            with pytest.raises(RuntimeError, match="must have the shape, dtype and device"):
                y.grad_fn(wrong)


@pytest.mark.parametrize("eager_in_c", ["c++"], indirect=True)
def test_backward_in_several_threads(eager_in_c):
    x, weight = torch.randn(4, 24).requires_grad_(), torch.randn(24).requires_grad_()
    (expected,) = torch.autograd.grad(rownorm.layer_norm(x, weight).sin().sum(), x)
    found = []

    def train():
        for _ in range(5):
            found.extend(torch.autograd.grad(rownorm.layer_norm(x, weight).sin().sum(), x))

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(torch.equal(one, expected) for one in found)


@pytest.mark.parametrize("eager_in_c", ["c++"], indirect=True)
def test_an_error_in_backward_reaches_the_caller(eager_in_c, monkeypatch):
    x, weight = torch.randn(4, 24).requires_grad_(), torch.randn(24)
    y = rownorm.rms_norm(x, weight)

    def broken(*_):
        raise ZeroDivisionError("in find_backward")

    monkeypatch.setattr(execute, "find_backward", broken)
    with pytest.raises(ZeroDivisionError, match="in find_backward"):
        y.sum().backward()
