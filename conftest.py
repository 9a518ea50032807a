"""What every test shares: the device, a fixed seed, memory that is NaN until it is written, and the selection of tests.

Tests marked ``exhaustive`` run with ``--exhaustive`` (``make test-all``). Otherwise they are deselected, and the
summary says how many.
"""

import gc
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads it when it is imported, so it is set before rownorm is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.pop("COLUMNS", None)  # of pytest-xdist: tests write to no terminal
os.environ["ROWNORM_TABLES"] = (
    ""  # plans are those of the shipped tables, whatever the user has tuned
)
# PyTorch requires it before the first matrix product, because tests use deterministic algorithms.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Inductor would start a process for each core, and each imports torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
torch.set_num_threads(1)  # tensors are small, and pytest-xdist uses the other cores

KERNELS, KEPT_S = "kernels", 14 * 24 * 3600  # in pytest's cache; how long one is kept
left_out = pytest.StashKey[int]()


def pytest_addoption(parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="also run tests marked exhaustive")


def pytest_configure(config) -> None:
    """Old kernels are removed, before workers begin."""
    if hasattr(config, "workerinput") or not hasattr(config, "cache"):
        return
    for folder in config.cache.mkdir(KERNELS).iterdir():
        if time.time() - folder.stat().st_mtime > KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items) -> None:
    if config.getoption("--exhaustive"):
        return
    exhaustive = [item for item in items if item.get_closest_marker("exhaustive")]
    config.stash[left_out] = len(exhaustive)
    if exhaustive:
        config.hook.pytest_deselected(items=exhaustive)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


def pytest_sessionfinish(session) -> None:
    """A worker of pytest-xdist reports its count to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(left_out, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Every worker collects all tests, so their counts are equal. A worker that crashed has none."""
    count = getattr(node, "workeroutput", {}).get("left_out", 0)
    node.config.stash[left_out] = max(count, node.config.stash.get(left_out, 0))


def pytest_terminal_summary(terminalreporter, config) -> None:
    if count := config.stash.get(left_out, 0):
        terminalreporter.write_line(f"{count} exhaustive tests were left for make test-all")


@pytest.fixture(scope="session")
def device() -> str:
    """The device that kernels run on: a GPU, or the CPU in Triton's interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", autouse=True)
def all_extensions() -> None:
    """On a GPU every test uses all extensions, also the one that is built in the background."""
    if torch.cuda.is_available():
        import rownorm
        from rownorm.launch import native

        rownorm.rms_norm(torch.ones(1, 8, device="cuda", requires_grad=True))
        native.node.wait()


@pytest.fixture(scope="session")
def triton_cache(pytestconfig, tmp_path_factory) -> Path:
    """The folder for compiled kernels that all tests, all workers and later sessions share.

    Triton's keys are of the sources, the compiler and its options, so a kernel that has changed is compiled again.
    ``--cache-clear`` empties it; with ``-p no:cacheprovider`` it is temporary.
    """
    if not hasattr(pytestconfig, "cache"):
        return tmp_path_factory.mktemp(KERNELS)
    return pytestconfig.cache.mkdir(KERNELS)


@pytest.fixture(scope="module", autouse=True)
def light_collections() -> None:
    """A garbage collection looks at what the tests of one file make. It takes a quarter of a second for everything that
    was imported before them, and measuring begins every round with one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def without_interpreter(monkeypatch) -> None:
    """Tensors on a CPU take the reference path, as they do for users. Prepared calls of earlier tests are dropped."""
    from rownorm.ops import execute

    monkeypatch.setattr(execute, "INTERPRETING", False)
    monkeypatch.setattr(execute, "_forward_calls", {})
    monkeypatch.setattr(execute, "_backward_calls", {})


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(20)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """``torch.empty`` is filled with NaN, so an element that a kernel does not write is noticed."""
    before = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session", autouse=True)
def interpreter(pytestconfig):
    """Triton's interpreter rounds like a GPU, and prepares its language once per kernel: ``support/interpreter.py``."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from support.interpreter import apply

    with pytest.MonkeyPatch.context() as patch:
        apply(patch, check_overflow=pytestconfig.getoption("--exhaustive"))
        yield


@pytest.fixture(autouse=True)
def silent_overflow():
    """No warnings from numpy, which computes in the interpreter, when a kernel overflows or divides by zero."""
    with np.errstate(all="ignore"):
        yield
