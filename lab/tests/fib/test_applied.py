"""``rownorm_lab.fib.enable`` and ``rownorm fib apply``."""

import os
import re
import sys
from pathlib import Path

import flashinfer_bench
import pytest
import torch
import torch.nn.functional as F

from lab_support.fib import add_traces, export
from lab_support.lab_commands import invoke
from rownorm_lab.fib import enable

APP = """
import sys
import torch
from flashinfer_bench import apply

def fallback(x, weight, eps):
    return torch.zeros_like(x)

for rows in (8, 5):
    x, weight = torch.randn(rows, 64).half(), torch.randn(64).half()
    y = apply("rmsnorm_d64", args=(x, weight, 1e-6), fallback=fallback)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))
print("arguments", *sys.argv[1:])
sys.exit(3)
"""


def call(x, weight, eps=1e-6):
    """The norm through apply; the fallback returns zeros."""
    return flashinfer_bench.apply(
        "rmsnorm_d64", args=(x, weight, eps), fallback=lambda x, weight, eps: torch.zeros_like(x)
    )


@pytest.fixture
def tensors(device):
    return torch.randn(8, 64, device=device).half(), torch.randn(64, device=device).half()


def test_rownorm_s_solutions_serve_calls(tmp_path, tensors):
    folder = add_traces(export(tmp_path / "data"), faster="torch_", error=5e-3)
    x, weight = tensors
    lines = []
    with enable(folder, log=lines.append):
        for rows in (8, 5, 1):  # 5 rows have no trace
            expected = F.rms_norm(x[:rows], (64,), weight, 1e-6)
            torch.testing.assert_close(call(x[:rows], weight), expected)
    assert len(lines) == 3
    assert all(line.startswith("rmsnorm_d64: rownorm_") for line in lines)
    with enable(folder, author=None, log=lines.append):
        call(x, weight)
    assert lines[-1] == "rmsnorm_d64: torch_rmsnorm_d64"
    with pytest.raises(RuntimeError, match="no fallback"):
        flashinfer_bench.apply("rmsnorm_d64", args=(x, weight, 1e-6))


def test_outputs_may_be_passed(tmp_path, tensors):
    x, weight = tensors
    out = torch.empty_like(x)
    with enable(add_traces(export(tmp_path / "data"))):
        flashinfer_bench.apply("rmsnorm_d64", args=(x, weight, 1e-6, out))
    torch.testing.assert_close(out, F.rms_norm(x, (64,), weight, 1e-6))


def test_calls_that_are_not_the_definition_s_take_the_fallback(tmp_path, tensors):
    x, weight = tensors
    lines = []
    cases = [
        (x.float(), weight, "x is torch.float32, not torch.float16"),
        (x[:, :32], weight[:32], "x has 32 in hidden, not 64"),
        (x[None], weight, "x has 3 dimensions, not 2"),
        (x.clone().requires_grad_(), weight, "x needs a gradient"),
    ]
    with enable(add_traces(export(tmp_path / "data")), log=lines.append):
        for rows, parameter, why in cases:
            assert not call(rows, parameter).any()
            assert lines[-1] == f"rmsnorm_d64: fallback, because {why}"
        with torch.no_grad():
            assert call(cases[-1][0], weight).any()
        flashinfer_bench.apply("unknown", args=(x,), fallback=lambda x: x)
        assert lines[-1] == "unknown: fallback, because no Solution has a trace"
        with pytest.raises(ValueError, match=r"torch.float32.*there is no fallback"):
            flashinfer_bench.apply("rmsnorm_d64", args=(x.float(), weight, 1e-6))


def test_the_tolerance_can_be_set(tmp_path, tensors):
    folder = add_traces(export(tmp_path / "data"), error=5e-3)
    lines = []
    with enable(folder, max_rtol=1e-3, log=lines.append):
        assert not call(*tensors).any()
    assert lines == ["rmsnorm_d64: fallback, because no Solution has a trace"]


def test_the_example_of_the_page(tmp_path, monkeypatch):
    """Its call has no trace in this dataset, so the fallback serves it."""
    page = Path(__file__).parents[3] / "docs" / "flashinfer-bench.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    add_traces(export(tmp_path / "results" / "fib"))
    monkeypatch.chdir(tmp_path)
    names = {
        "x": torch.randn(3, 4096),
        "weight": torch.ones(4096),
        "my_rms_norm": lambda x, weight, eps: F.rms_norm(x, (4096,), weight, eps),
    }
    exec(block, names)
    assert names["y"].shape == (3, 4096)


def test_without_traces_there_is_nothing_to_apply(tmp_path):
    folder = export(tmp_path / "data")
    with pytest.raises(ValueError, match="no PASSED trace of a Solution of rownorm"):
        enable(folder)
    add_traces(folder, status="TIMEOUT")
    assert invoke("fib", "apply", folder, "--", "python", "app.py").exit_code == 2


def test_apply_runs_a_program(tmp_path, monkeypatch, capfd):
    folder = add_traces(export(tmp_path / "data"))
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    ran = invoke("fib", "apply", folder, "--log", "--", "python", "app.py", "--batch", "8")
    printed = capfd.readouterr()
    assert ran.exit_code == 3, printed.err
    assert printed.out == "arguments --batch 8\n"
    assert printed.err.count("rmsnorm_d64: rownorm_") == 2


def test_a_program_that_fails_shows_its_own_lines(tmp_path, monkeypatch, capfd):
    folder = add_traces(export(tmp_path / "data"))
    (tmp_path / "app.py").write_text("def f():\n    raise KeyError('mine')\nf()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    assert invoke("fib", "apply", folder, "--", "python", "app.py").exit_code == 1
    printed = capfd.readouterr().err
    assert "KeyError: 'mine'" in printed
    assert "app.py" in printed
    assert "runpy" not in printed
    assert "fib/start.py" not in printed


def test_other_programs_are_refused(tmp_path):
    folder = add_traces(export(tmp_path / "data"))
    ran = invoke("fib", "apply", folder, "--", "torchrun", "app.py")
    assert ran.exit_code == 2
    assert "rownorm_lab.fib.enable" in ran.output
