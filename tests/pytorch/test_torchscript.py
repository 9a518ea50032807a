"""TorchScript: ``torch.jit.script`` says that it is not supported, ``torch.jit.trace`` works."""

import pytest
import torch
from torch import nn

import rownorm

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:.*torch.jit.* is deprecated")


def calls_a_norm(x: torch.Tensor):
    return rownorm.rms_norm(x)


@pytest.mark.parametrize(
    ("scripted", "name"),
    [
        (rownorm.nn.LayerNorm(8), r"rownorm\.nn\.LayerNorm"),
        (nn.Sequential(nn.Linear(8, 8), rownorm.nn.RMSNorm(8)), r"rownorm\.nn\.RMSNorm"),
        (rownorm.nn.RMSNormGated(8), r"rownorm\.nn\.RMSNormGated"),
        (rownorm.nn.AdaLayerNormZero(8), r"rownorm\.nn\.AdaLayerNormZero"),
        (rownorm.add_rms_norm, r"rownorm\.add_rms_norm"),
        (rownorm.functional.layer_norm, r"rownorm\.functional\.layer_norm"),
        (calls_a_norm, r"rownorm\.rms_norm"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_script_says_what_to_use(scripted, name):
    with pytest.raises(NotImplementedError, match=f"{name} does not support TorchScript.*trace"):
        torch.jit.script(scripted)


def test_script_of_a_patched_model_says_what_to_do():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    rownorm.patch(model)
    with pytest.raises(NotImplementedError, match=r"rownorm\.unpatch\(model\)"):
        torch.jit.script(model)
    rownorm.unpatch(model)
    torch.jit.script(model)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of the checks of shapes
def test_trace(name, device):
    model = nn.Sequential(nn.Linear(8, 8), getattr(rownorm.nn, name)(8)).to(device)
    traced = torch.jit.trace(model, torch.randn(3, 8, device=device))
    x = torch.randn(5, 8, device=device)
    torch.testing.assert_close(traced(x), model(x))
