"""What editors, type checkers and ``inspect`` see of the modules and functions."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rownorm

every_module = pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])


@every_module
def test_signature_is_torchs_and_out_dtype(name):
    ours, torchs = (
        [(one.name, one.kind, one.default) for one in inspect.signature(cls).parameters.values()]
        for cls in (getattr(rownorm.nn, name), getattr(torch.nn, name))
    )
    assert ours == [*torchs, ("out_dtype", inspect.Parameter.KEYWORD_ONLY, None)]


@every_module
def test_skip_init(name):
    module = torch.nn.utils.skip_init(getattr(rownorm.nn, name), 8, dtype=torch.float64)
    assert module.weight.shape == (8,)
    assert (module.weight.device.type, module.weight.dtype) == ("cpu", torch.float64)


def test_a_patched_class_has_the_signature_of_its_own():
    class Named(torch.nn.LayerNorm):
        def __init__(self, name, n_cols):
            super().__init__(n_cols)
            self.name = name

    model = torch.nn.Sequential(Named("first", 8))
    rownorm.patch(model)
    assert type(model[0])("second", 16).normalized_shape == (16,)


# Each line with ``E:`` must be the only one that the type checker rejects, with this word in its message.
SNIPPET = """
import torch
from rownorm import add_rms_norm, layer_norm
from rownorm.nn import LayerNorm, RMSNorm

x, dtype = torch.ones(2, 8), torch.bfloat16
LayerNorm(8, 1e-5, True, False, "cpu", dtype, out_dtype=dtype)
RMSNorm((4, 2), eps=None, device=torch.device("cpu"))
RMSNorm(x.shape[-1:]), LayerNorm([4, 2])
layer_norm(x, activation="gelu_tanh", rounding="llama")
LayerNorm("8")  # E: str
LayerNorm(8, epsilon=1)  # E: epsilon
RMSNorm(8, bias=True)  # E: bias
RMSNorm(8, dtype="bf16")  # E: str
layer_norm(x, activation="tanh")  # E: activation
add_rms_norm(x, x, rounding="twice")  # E: rounding
"""


@pytest.mark.exhaustive
def test_a_type_checker_rejects_wrong_arguments(tmp_path):
    pytest.importorskip("mypy")
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    source = Path(rownorm.__file__).parent.parent
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", os.devnull]
    ran = subprocess.run(
        [*command, "--no-error-summary", file.name],
        env=os.environ | {"MYPYPATH": str(source)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^snippet\.py:(\d+): error: (.*)$", ran.stdout, re.M)
    expected = [
        (number, line.split("# E: ")[1])
        for number, line in enumerate(SNIPPET.splitlines(), 1)
        if "# E: " in line
    ]
    assert [int(number) for number, _ in found] == [number for number, _ in expected], ran.stdout
    for (_, message), (_, word) in zip(found, expected, strict=True):
        assert word in message
