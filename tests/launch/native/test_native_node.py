"""The node in C++: how it is built, and what a user sees of it. test_native_eager.py has its results."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import rownorm
from rownorm.launch import native
from rownorm.ops import eager, execute
from support.fake_driver import needs_interpreter

pytestmark = needs_interpreter


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A function that makes the C++ compiler a script; its last argument is the file to write."""

    def use(*lines):
        script = tmp_path / "compiler"
        script.write_text("\n".join(("#!/bin/sh", "for file; do :; done", *lines)))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        return tmp_path / "cache"

    return use


@pytest.fixture
def background(monkeypatch):
    """The state of the background build, as in a new process."""
    monkeypatch.setattr(native.node, "_thread", None)
    monkeypatch.setattr(native.node, "_state", "no norm with gradients was called yet")


@pytest.fixture
def cpu(monkeypatch):
    """Tensors on the CPU are computed by their extension rather than in Triton's interpreter."""
    monkeypatch.setattr(execute, "INTERPRETING", False)
    monkeypatch.setattr(eager, "native", eager.Native())


def test_it_is_compiled_once(node, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert native.node.build().__file__ == node.__file__


def test_a_failing_compiler_leaves_nothing_and_is_named(compiler, background):
    cache = compiler("echo 'node.cpp:3: error: no such type'", 'echo half > "$file"', "exit 1")
    installed = []
    native.node.load_in_background(installed.append)
    assert not native.node.wait()
    assert "compiler failed: node.cpp:3: error: no such type; see " in native.node.reason()
    assert installed == []
    left = {path.name for path in cache.rglob("*") if path.is_file()}
    assert left == {"lock", "failed_compiler.txt"}


def test_a_failure_is_not_repeated_on_the_same_day(compiler, tmp_path):
    compiler(f"echo once >> {tmp_path}/count", "exit 1")
    built = tmp_path / "node.so"
    for _ in range(2):
        with pytest.raises(RuntimeError, match="compiler failed; see"):
            native.node._compile("", built, (), ())
    old = time.time() - native.node.DAY - 1
    os.utime(tmp_path / "failed_compiler.txt", (old, old))
    with pytest.raises(RuntimeError, match="compiler failed"):
        native.node._compile("", built, (), ())
    assert (tmp_path / "count").read_text().split() == ["once", "once"]


def test_one_that_cannot_be_loaded_is_built_again(compiler, node, monkeypatch):
    compiler(f'cp {node.__file__} "$file"')
    with monkeypatch.context() as patched:
        patched.setattr(native.node, "_import", lambda file: file)
        built = native.node.build()
    built.write_bytes(b"of another machine")
    assert native.node.build().record
    assert built.stat().st_size == Path(node.__file__).stat().st_size


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


COMPILES = """
import os, sys, threading, time
from pathlib import Path
from rownorm.launch.native import node
thread = threading.Thread(target=node._compile, args=("", Path(sys.argv[1]), (), ()), daemon=True)
thread.start()
thread.join(float(sys.argv[2]))
os._exit(0)
"""


def test_processes_wait_for_the_one_that_compiles(compiler, tmp_path):
    compiler(f"echo once >> {tmp_path}/count", "sleep 1", 'echo built > "$file"')
    built = tmp_path / "node.so"
    command = [sys.executable, "-c", COMPILES, str(built), "60"]
    processes = [subprocess.Popen(command) for _ in range(2)]
    native.node._compile("", built, (), ())
    assert [process.wait() for process in processes] == [0, 0]
    assert built.read_text() == "built\n"
    assert (tmp_path / "count").read_text().split() == ["once"]


def test_the_compiler_goes_on_when_its_process_ends(compiler, tmp_path):
    """And whoever reads the output of that process does not wait for the compiler."""
    compiler("sleep 2", 'echo built > "$file"')
    built = tmp_path / "node.so"
    command = [sys.executable, "-c", COMPILES, str(built), "0.5"]
    subprocess.run(command, check=True, capture_output=True)
    assert not built.exists()
    native.node._compile("", built, (), ())  # waits for the first one
    assert built.read_text() == "built\n"
    assert not list(tmp_path.glob("build_*"))


def test_the_first_norm_with_gradients_has_it_built(cpu, node, monkeypatch):
    """The first, not the second: every call after it can be native."""
    started = []
    monkeypatch.setattr(native.node, "load_in_background", started.append)
    x = torch.randn(4, 24)
    rownorm.rms_norm(x)
    assert started == []
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
    assert [edge is not None for edge, _ in y.grad_fn.next_functions] == [True] + 4 * [False]


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
    found, interpret, lock = [], eager_in_c.on_launch, threading.Lock()

    def one_at_a_time(*launch):
        with lock:  # Triton's interpreter is made for one thread
            interpret(*launch)

    eager_in_c.on_launch = one_at_a_time

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
