"""``rownorm patch``."""

import json
import sys

import pytest

from lab_support.lab_commands import invoke

pytestmark = pytest.mark.usefixtures("without_interpreter")
MODELS = """
from torch import nn
from support.residual_blocks import OneLineEach
MODEL = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
def make(): return nn.Sequential(nn.RMSNorm(4, eps=1e-6), nn.BatchNorm1d(4))
def block(): return OneLineEach()
def no_norms(): return nn.Linear(4, 4)
def sized(n): return nn.LayerNorm(n)
def nothing(): return None
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "some_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield
    sys.modules.pop("some_models", None)


def test_a_factory():
    ran = invoke("patch", "some_models:make")
    assert ran.exit_code == 0, ran.output
    assert ran.output.splitlines()[0] == "Sequential: 1 norm swapped, 1 left alone"
    assert "rms_norm, eps=1e-06" in ran.output
    assert "it does not normalize rows" in ran.output


def test_a_model_as_json():
    ran = invoke("patch", "some_models:MODEL", "--json", "--out-dtype", "bf16")
    assert json.loads(ran.output)["swapped"] == [
        {"name": "1", "class_name": "LayerNorm", "form": "layer_norm, eps=1e-05, out_dtype=bf16"}
    ]


def test_residual_adds():
    ran = invoke("patch", "some_models:block", "--fuse-residuals")
    assert ran.exit_code == 0, ran.output
    first, *_ = ran.output.splitlines()
    assert first == "OneLineEach: 2 norms swapped, 1 fused with the residual add before"
    assert "add_layer_norm in OneLineEach.forward" in ran.output
    assert "no residual add right before it in OneLineEach.forward" in ran.output
    ran = invoke("patch", "some_models:block", "--fuse-residuals", "--json")
    assert [one["name"] for one in json.loads(ran.output)["fused"]] == ["second_norm"]


def test_a_model_without_norms():
    ran = invoke("patch", "some_models:no_norms", "--fuse-residuals")
    assert (ran.exit_code, ran.output) == (0, "Linear: no norms were found\n")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("some_models", "is not MODULE:FACTORY"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("some_models:mak", "has no attribute 'mak'"),
        ("some_models:sized", "cannot be called without arguments"),
        ("some_models:nothing", "returned NoneType"),
        ("some_models:NUMBER", "some_models:NUMBER is int"),
    ],
)
def test_bad_names(factory, message):
    ran = invoke("patch", factory)
    assert ran.exit_code == 2
    assert message in " ".join(ran.output.replace("│", " ").split())
