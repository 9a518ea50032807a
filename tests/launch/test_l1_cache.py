"""Copies through the L1 cache: the hook that makes Triton use it, and the carve-out that the driver gets."""

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from triton import knobs

import rownorm
from rownorm.launch import launcher
from rownorm.launch.l1_cache import copies_through_l1
from support.compiled import backward_ptx

PTX = "cp.async.cg.shared.global [a], [b], 0x10; cp.async.ca.shared.global [c], [d], 0x8;"


def test_copies_go_through_l1_inside_the_context_only():
    stages = {"ptx": lambda source, metadata: source + metadata}
    with copies_through_l1(True):
        hook = knobs.runtime.add_stages_inspection_hook
        hook("backend", stages, "options", "language", 90)
        assert hook() == hook()  # the hook is called for its cache key
    assert knobs.runtime.add_stages_inspection_hook is None
    assert stages["ptx"](PTX, "rest") == PTX.replace(".cg", ".ca") + "rest"


def test_threads_that_compile_at_once_all_use_l1():
    together = threading.Barrier(4)

    def compiles(_):
        together.wait()
        with copies_through_l1(True):
            before = knobs.runtime.add_stages_inspection_hook
            time.sleep(0.01)
            return before is not None and before is knobs.runtime.add_stages_inspection_hook

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(compiles, range(4)))
    assert knobs.runtime.add_stages_inspection_hook is None


def test_other_threads_are_not_affected():
    stages = {"ptx": lambda source, metadata: source + metadata}
    with copies_through_l1(True):
        hook = knobs.runtime.add_stages_inspection_hook
        with ThreadPoolExecutor(1) as other:
            other.submit(hook, "backend", stages, "options", "language", 90).result()
            assert other.submit(hook).result() != hook()
    assert stages["ptx"](PTX, "") == PTX


def test_no_hook_is_set_when_l1_is_not_wanted():
    with copies_through_l1(False):
        assert knobs.runtime.add_stages_inspection_hook is None


def test_a_failed_compilation_removes_the_hook():
    with pytest.raises(RuntimeError, match="compiler"), copies_through_l1(True):
        raise RuntimeError("compiler")
    assert knobs.runtime.add_stages_inspection_hook is None


def test_an_existing_hook_stays(monkeypatch):
    def theirs(*_):
        return "theirs", "1"

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", theirs)
    with copies_through_l1(True):
        assert knobs.runtime.add_stages_inspection_hook is theirs
    assert knobs.runtime.add_stages_inspection_hook is theirs


def test_only_clusters_copy_through_l1(triton_cache):
    shared = {"regime": "cluster", "num_warps": 4, "block_cols": 1024, "cluster_size": 2}
    own = {"regime": "resident", "num_warps": 4, "block_cols": 2048}
    cluster, alone = backward_ptx([(8192, shared), (8192, own)], triton_cache)
    assert "cp.async.cg" not in cluster
    assert "], 0x10" in cluster.partition("cp.async.ca")[2]
    assert "cp.async.cg" in alone


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None,
    reason="needs an NVIDIA driver",
)
def test_the_driver_gets_the_shared_memory_that_backward_needs(monkeypatch):
    """As much as the planned programs use, not all of it, so that the rest remains L1."""
    bound = []
    bind = launcher.bind

    def record(call, *arguments):
        bound.append((call, bind(call, *arguments)))
        return bound[-1][1]

    monkeypatch.setattr(launcher, "bind", record)
    x = torch.randn(4096, 8192 + 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(8192 + 8, device="cuda", dtype=torch.bfloat16)
    rownorm.rms_norm(x, weight).sum().backward()
    call, kernel = next(pair for pair in bound if pair[0].kernel.__name__.startswith("backward_"))
    percent = ctypes.c_int(-1)
    function = ctypes.c_void_p(kernel.compiled.function)
    assert ctypes.CDLL("libcuda.so.1").cuFuncGetAttribute(ctypes.byref(percent), 9, function) == 0
    total = torch.cuda.get_device_properties(0).shared_memory_per_multiprocessor
    needed = call.programs_per_sm * kernel.compiled.metadata.shared
    assert needed <= percent.value / 100 * total < needed + total / 10
