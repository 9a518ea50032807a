"""Where Triton is missing, as on macOS and Windows: a CPU computes, plans are made, the rest says what to do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Python's finder of modules, without Triton. It runs first in each new process.
WITHOUT_TRITON = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] == "triton" else find(name, *rest)
"""
LIBRARY = """
import sys, torch, rownorm
assert "triton" not in sys.modules

x = torch.randn(3, 100, requires_grad=True)
model = torch.nn.Sequential(rownorm.nn.RMSNorm(100), torch.nn.LayerNorm(100))
print(rownorm.patch(model))
for y in (model(x), rownorm.add_layer_norm(x, x)[0]):
    y.sin().sum().backward()
expected = torch.nn.functional.rms_norm(x, (100,), None, 1e-6)
torch.testing.assert_close(rownorm.rms_norm(x), expected)

def message(function):
    try:
        function()
    except ModuleNotFoundError as error:
        print(error)

def kernels():
    rownorm.ops.execute.takes_kernels = lambda x: True  # as for a tensor on a GPU
    rownorm.ops.execute.INTERPRETING = True
    rownorm.rms_norm(x.detach().half())

message(kernels)
sys.platform = "darwin"
message(kernels)
"""


def run(code_or_arguments, tmp_path, triton=True):
    """(exit status, what it prints) of a program or of the command line in a new process."""
    (tmp_path / "sitecustomize.py").write_text("" if triton else WITHOUT_TRITON)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src"), *filter(None, given)])
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    is_code = isinstance(code_or_arguments, str)
    arguments = (
        ["-c", code_or_arguments] if is_code else ["-m", "rownorm_lab.main", *code_or_arguments]
    )
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=environment | {"PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout


@pytest.mark.parametrize("triton", [True, False], ids=["with", "without"])
def test_first_example_of_the_readme(triton, tmp_path):
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    status, printed = run(example, tmp_path, triton)
    assert status == 0, printed
    assert "8 x 4096 float32 on NVIDIA H100/H200 (sm_90)" in printed
    assert ("Triton is not installed here" in printed) is not triton


def test_library(tmp_path):
    status, printed = run(LIBRARY, tmp_path, triton=False)
    assert status == 0, printed
    assert "1 norm swapped" in printed
    *_, linux, elsewhere = printed.splitlines()
    dependency = re.search(r"triton(>=[\d.]+,<[\d.]+)", (ROOT / "pyproject.toml").read_text())[0]
    assert f"pip install '{dependency}'" in linux
    assert "Linux with a GPU" in elsewhere
    assert "pip install" not in elsewhere


EXHAUSTIVE = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("info",), 0),
        pytest.param(("analyze", "rms_norm", "--cols", "4096"), 1, marks=EXHAUSTIVE),
        pytest.param(("check", "--quick"), 0, marks=EXHAUSTIVE),
        pytest.param(("source", "forward_resident"), 1, marks=EXHAUSTIVE),
        pytest.param(("learn", "check", "1"), 1, marks=EXHAUSTIVE),
        pytest.param(("tune", "--width", "4096"), 1, marks=EXHAUSTIVE),
        pytest.param(("bars", "measure", "--out", "bars"), 1, marks=EXHAUSTIVE),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands(command, expected, tmp_path):
    status, printed = run(command, tmp_path, triton=False)
    assert status == expected, printed
    assert "Triton is not installed" in " ".join(printed.split())
    assert "Traceback" not in printed
    if expected:
        assert len(printed.splitlines()) == 1
