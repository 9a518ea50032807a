"""The report of ``rownorm.patch``."""

import json

import pytest
from torch import nn

import rownorm
from support import norm_modules as norms

pytestmark = pytest.mark.usefixtures("without_interpreter")


@pytest.fixture
def report():
    class OtherNorm(norms.TwoArguments):
        pass

    layers = [
        nn.ModuleDict({"before": nn.LayerNorm(8), "after": norms.ShiftedWeight(8)})
        for _ in range(3)
    ]
    return rownorm.patch(nn.ModuleDict({"layers": nn.ModuleList(layers), "gate": OtherNorm(8)}))


def test_printed(report):
    assert str(report).splitlines() == [
        "ModuleDict: 6 norms swapped, 1 left alone",
        "  swapped  class          where            form",
        "  3        LayerNorm      layers.*.before  layer_norm, eps=1e-05",
        "  3        ShiftedWeight  layers.*.after   rms_norm, eps=1e-06, weight_shift=1",
        "  left  class      where  reason",
        "  1     OtherNorm  gate   its forward takes more than one argument, and the second is no gate",
    ]


def test_to_dict(report):
    values = json.loads(json.dumps(report.to_dict()))
    assert (values["model"], values["n_swapped"], values["n_left"]) == ("ModuleDict", 6, 1)
    assert values["swapped"][0] == {
        "name": "layers.0.before",
        "class_name": "LayerNorm",
        "form": "layer_norm, eps=1e-05",
    }
    assert values["left"][0]["reason"] == (
        "its forward takes more than one argument, and the second is no gate"
    )


def test_the_model_itself():
    assert str(rownorm.patch(nn.LayerNorm(4, elementwise_affine=False))).splitlines() == [
        "LayerNorm: 1 norm swapped",
        "  swapped  class      where             form",
        "  1        LayerNorm  the model itself  layer_norm, eps=1e-05, no weight",
    ]


def test_a_single_norm_has_its_own_name():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    assert str(rownorm.patch(model)).splitlines()[2].split()[:3] == ["1", "LayerNorm", "1"]
