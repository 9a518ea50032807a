"""The examples run, as scripts and as imports."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, *arguments, **settings):
    """Run an example as a user does: without the interpreter, with kernels only on a GPU."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["OMP_NUM_THREADS"] = "1"  # other tests run at the same time
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, **settings
    )


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Run an example in this process, for a call that ends before it computes: (exit status, stdout, stderr)."""

    def ran(name, *arguments):
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(path, run_name="__main__")
        return ended.value.code, *capsys.readouterr()

    return ran


def test_readme(capsys):
    """A patched model, a function, a module and a modulated norm: the snippets run one after the other, as a reader
    types them.
    """
    text = (EXAMPLES.parent / "README.md").read_text()
    patched, function, module, modulated = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(patched, names)
    assert "1 norm swapped" in capsys.readouterr().out
    assert len([line for line in function.splitlines() if line]) <= 6
    exec(function, names)
    assert "8 x 4096 float32 on NVIDIA H100/H200 (sm_90)" in capsys.readouterr().out
    exec(module, names)
    torch.testing.assert_close(names["y"], F.layer_norm(names["x"], (4096,)))
    exec(modulated, names)
    assert names["y"].shape == (2, 16, 4096)
    assert names["gated"].shape == (8, 4096)


@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_kernel"])
def test_help(name, run_here):
    status, printed, _ = run_here(name, "--help")
    assert status == 0
    assert "usage" in printed


def test_layer_norm_run_once(capsys):
    difference, milliseconds = load("layer_norm").run_once(
        B=3, N=257, dtype=torch.float32, eps=1e-6
    )
    # Two LayerNorms of values of order 10, each with a few fp32 roundings.
    assert difference < 16 * 10 * torch.finfo(torch.float32).eps
    assert milliseconds > 0
    printed = capsys.readouterr().out
    assert "max difference" in printed
    assert "ms" in printed


def test_layer_norm_script():
    ran = run("layer_norm", "-B", 8, "-N", 512, "--dtype", "float64")
    assert ran.returncode == 0, ran.stderr
    assert "8 x 512 torch.float64" in ran.stdout
    assert torch.cuda.is_available() or "CPU timing" in ran.stdout


def test_layer_norm_kernel_import(device):
    x = torch.randn(64, 512, device=device)
    weight, bias = torch.randn(2, 512, device=device)
    y = load("layer_norm_kernel").triton_layerNorm_kernel(x, weight, bias)
    torch.testing.assert_close(y, F.layer_norm(x, (512,), weight, bias))


def test_layer_norm_kernel_script_overwrites_files_only_on_request(tmp_path, run_here):
    traces = [tmp_path / name for name in ("triton_profile.json", "pytorch_profile.json")]
    traces[0].write_text("mine")
    arguments = ("--rows", 16, "--widths", 256, 1024, "--out", tmp_path)
    status, _, why = run_here("layer_norm_kernel", *arguments)
    assert (status, "--force" in why) == (2, True)
    assert traces[0].read_text() == "mine"
    assert not traces[1].exists()

    ran = run("layer_norm_kernel", *arguments, "--force")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "GB/s" in ran.stdout
    for trace in traces:
        assert json.loads(trace.read_text())["traceEvents"]
    for plot in ("bandwidth.png", "time.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["tiny_llama_v3", "tiny_openfold_v3"])
def test_tiny_models(name, monkeypatch, capsys, without_interpreter):
    """The stages have the same losses, up to the four digits that are printed."""
    monkeypatch.setattr(sys, "argv", [name, "--steps", "2"])
    load(name).main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["stage", "baseline", "fused", "rownorm"]
    losses = [[float(loss) for loss in line[1:3]] for line in lines[1:]]
    assert losses[1:] == [pytest.approx(losses[0], abs=2e-3)] * 2
    assert lines[1][-1] == "1.00x"


def test_flashinfer_bench(tmp_path, monkeypatch, capsys):
    load("flashinfer_bench/triton_rmsnorm").main()
    errors = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(errors) == 3
    assert max(errors) < 1e-3
    pytest.importorskip("flashinfer_bench", reason="flashinfer-bench is not installed")
    create, benchmark = (
        load(f"flashinfer_bench/{name}") for name in ("create_solution", "benchmark")
    )
    monkeypatch.setattr(sys, "argv", ["example", str(tmp_path / "data")])
    create.main()
    assert "rmsnorm_d4096: 5 workloads" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        create.main()  # it exists
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    assert "torch sees no GPU" in capsys.readouterr().err


def test_run_triton_profiling(run_here):
    """It is ``rownorm profile rms_norm``, which has tests of its own."""
    status, printed, _ = run_here("run_triton_profiling", "--help")
    assert (status, "rownorm profile rms_norm --cols 4096" in printed) == (0, True)
    status, _, why = run_here("run_triton_profiling", "--model", "llama")
    assert (status, "name one of OPERATION" in why) == (2, True)


def test_run_rocprof_triton(tmp_path):
    """Without an AMD GPU the summary says so; a second run overwrites nothing."""
    command = ["sh", str(EXAMPLES / "run_rocprof_triton.sh"), "--rows", "16", "--cols", "64"]
    environment = {**os.environ, "PYTHON": sys.executable, "TRITON_INTERPRET": "0"}
    settings = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    ran = subprocess.run(command, check=False, **settings)
    assert ran.returncode == 0, ran.stderr
    summary = tmp_path / "rocprof_results" / "triton_analysis_summary.md"
    text = summary.read_text()
    assert "| rocprofv3 |" in text
    assert "Primary bottleneck" in text
    assert subprocess.run(command, check=False, **settings).returncode == 2
    assert summary.read_text() == text


def test_tiny_models_refuse_no_steps(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tiny_llama_v3", "--steps", "0"])
    with pytest.raises(SystemExit):
        load("tiny_llama_v3").main()
    assert "--steps must be at least 1" in capsys.readouterr().err


def test_own_kernel():
    """In the interpreter, as its first lines say; on a GPU, as it is."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "own_kernel.py")],
        env=os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(ran.stdout.split(":")[1]) < 0.04  # a rounding of bf16, and one of the interpreter
