"""Where Triton is missing, as on macOS and Windows: a CPU computes, plans are made, the rest says what to do."""

import re

import pytest

from support.without_triton import ROOT, run

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


@pytest.mark.parametrize("triton", [True, False], ids=["with", "without"])
def test_first_examples_of_the_readme(triton, tmp_path):
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    status, printed = run("".join(examples[:2]), tmp_path, triton)
    assert status == 0, printed
    assert "1 norm swapped" in printed
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
