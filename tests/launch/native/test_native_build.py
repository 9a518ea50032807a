"""Loading the extension; where it is not in use, Python does the same."""

import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from rownorm import launch
from rownorm.launch import launcher, native
from rownorm.ops import execute
from support.fake_driver import (
    INTEGER,
    POINTER,
    STREAM,
    needs_compiler,
    needs_interpreter,
    read_parameters,
)

pytestmark = needs_compiler


def test_threads_that_need_the_first_kernel_at_once_wait_for_one_build(monkeypatch):
    called, together = [], threading.Barrier(2)

    def install(_launch):
        called.append(threading.get_ident())
        time.sleep(0.1)

    monkeypatch.setattr(execute, "_launch", None)
    monkeypatch.setattr(execute, "_before_first_launch", [install])
    monkeypatch.setattr(launch, "on_change", lambda _forget: None)
    with ThreadPoolExecutor(2) as pool:
        modules = list(pool.map(lambda _: (together.wait(), execute.launch_layer())[1], range(2)))
    assert modules == [launch, launch]
    assert len(called) == 1


@pytest.mark.parametrize("setting", ["ROWNORM_NATIVE", "ROWNORM_DIRECT_LAUNCH"])
def test_a_setting_turns_it_off(setting, monkeypatch):
    monkeypatch.setenv(setting, "0")
    assert native._load.__wrapped__() == (None, f"{setting} is 0")


@needs_interpreter
def test_not_in_the_interpreter_and_not_without_a_gpu(monkeypatch):
    assert native._load.__wrapped__() == (None, "kernels run in Triton's interpreter")
    monkeypatch.setattr(native.knobs.runtime, "interpret", False)
    assert native._load.__wrapped__() == (None, "there is no NVIDIA GPU")


@pytest.mark.parametrize("what", ["Python.h", "compiler", "libcuda"])
def test_the_reason_names_what_is_missing(what, monkeypatch, tmp_path, capfd, caplog):
    monkeypatch.setattr(native.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if what == "Python.h":
        monkeypatch.setattr(sysconfig, "get_paths", lambda *_: {"include": str(tmp_path)})
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
def test_an_unknown_launcher_is_called_from_python(change, driver, monkeypatch):
    """A value of None: the launcher has no such attribute."""
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
    arguments = ([call], {"x": x}, {"y": lambda: torch.empty(6)}, ("y",), 0)
    assert not native.is_native(launcher.bind_all(*arguments))
    for attribute in ("global_scratch_size", "profile_scratch_size", "launch_pdl"):
        setattr(type(compiled.run), attribute, 0)
    type(compiled.run).__name__ = "CudaLauncher"
    prepared = launcher.bind_all(*arguments)
    assert native.is_native(prepared)
    kinds, read = (POINTER, POINTER, INTEGER, POINTER, POINTER), []
    driver.on_launch = lambda _, parameters: read.append(read_parameters(parameters, kinds))
    (y,) = prepared((x,), [x.data_ptr()])
    assert read == [[x.data_ptr(), y.data_ptr(), 6, 0, 0]]
    assert driver.launched[0][:6] == (77, (3, 1, 1), (128, 1, 1), 512, STREAM, [])
