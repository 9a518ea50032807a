"""The gated norms of transformers: the same bits in bf16 on a CPU, by options as in docs/operations.md and by patch."""

import importlib
import inspect

import pytest
import torch
from torch import nn

import rownorm
from support.transformers_models import gated_classes, transformers

pytestmark = [
    pytest.mark.usefixtures("without_interpreter"),
    pytest.mark.filterwarnings("ignore"),  # of transformers
]
WIDTH, GROUPS = 96, 3
QWEN = {"gate_activation": "silu", "rounding": "llama"}
KIMI = {"gate_activation": "sigmoid"}
MAMBA = {"gate_activation": "silu", "gate_first": True, "rounding": "llama"}
IN_GROUPS = MAMBA | {"group_cols": WIDTH // GROUPS}
FORMS = {
    "BailingHybridRMSNormGated": KIMI,
    "BambaRMSNormGated": MAMBA,
    "FalconH1RMSNormGated": {"gate_activation": "silu", "group_cols": WIDTH // GROUPS},
    "Glm5NextTextRMSNormGated": KIMI,
    "GraniteMoeHybridRMSNormGated": MAMBA,
    "KimiLinearRMSNormGated": KIMI,
    "MambaRMSNormGated": MAMBA,
    "NemotronHRMSNormGated": IN_GROUPS,
    "OlmoHybridRMSNormGated": QWEN,
    "Qwen3_5RMSNormGated": QWEN,
    "Qwen3_5MoeRMSNormGated": QWEN,
    "Qwen3NextRMSNormGated": QWEN,
    "Qwen4ExpTextRMSNormGated": QWEN,
    "Zamba2RMSNormGated": IN_GROUPS,
}
USUAL = (
    "FalconH1",
    "KimiLinear",
    "Mamba",
    "Qwen3Next",
    "Zamba2",
)  # the others have the form of one of them
LEFT = ("FalconH1RMSNormGated",)  # of rows in four dimensions it makes no sense


def of_class(name, **options):
    """A module in bf16 whose weight is not 1. Its class is found in the sources: not all are exported."""
    places = dict(gated_classes(transformers()))
    if name not in places:
        pytest.skip(f"this transformers has no {name}")
    norm_class = getattr(importlib.import_module(places[name]), name)
    sizes = {"hidden_size": WIDTH, "group_size": WIDTH // GROUPS, "n_groups": GROUPS}
    taken = inspect.signature(norm_class.__init__).parameters
    module = norm_class(**{one: size for one, size in sizes.items() if one in taken}, **options)
    nn.init.normal_(module.weight)
    return module.bfloat16()


def results(function, x, gate, weight):
    """y, and the gradients of x, of the gate and of the weight."""
    y = function(x, gate)
    return y, torch.autograd.grad(y, (x, gate, weight), torch.ones_like(y))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (not name.startswith(USUAL)))
        for name in FORMS
    ],
)
def test_the_same_bits(name):
    module = of_class(name)
    # Parts of a projection, as the models have them.
    x, gate = (torch.randn(2, 7, 2 * WIDTH).bfloat16()[..., WIDTH:].requires_grad_() for _ in "xg")
    expected, gradients = results(module, x, gate, module.weight)

    def by_options(x, gate):
        return rownorm.rms_norm(
            x, module.weight, gate=gate, eps=module.variance_epsilon, **FORMS[name]
        )

    model = nn.ModuleDict({"norm": module})
    report = rownorm.patch(model)
    assert [one.class_name for one in report.left] == ([name] if name in LEFT else [])
    for function in (by_options, *([] if name in LEFT else [module])):
        y, own = results(function, x, gate, module.weight)
        assert type(y.grad_fn).__name__ != type(expected.grad_fn).__name__
        assert torch.equal(y, expected)
        for one, other in zip(own, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 * other.abs().max().item())


def test_falcon_with_its_gate_first():
    module = of_class("FalconH1RMSNormGated", norm_before_gate=False)
    x, gate = torch.randn(2, 2, 7, WIDTH).bfloat16()
    options = FORMS["FalconH1RMSNormGated"] | {"gate_first": True}
    y = rownorm.rms_norm(x, module.weight, gate=gate, eps=module.variance_epsilon, **options)
    assert torch.equal(y, module(x, gate))


def test_every_gated_class_is_here():
    """Of this version of transformers."""
    package = transformers()
    if package.__version__ != "5.22.2":
        pytest.skip(f"counts the classes of transformers 5.22.2; this is {package.__version__}")
    assert {name for name, _ in gated_classes(package)} == set(FORMS)
