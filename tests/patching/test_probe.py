"""The forms that a probe recognizes, and what it must leave alone."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rownorm
from rownorm.ops.checks import DTYPES
from rownorm.patching.swap import Patched
from support import norm_modules as norms

pytestmark = pytest.mark.usefixtures("without_interpreter")
LLAMA = 'rms_norm, eps=1e-06, rounding="llama"'
FORMS = {
    norms.RoundedBeforeWeight: LLAMA,
    norms.RoundedOnce: "rms_norm, eps=1e-06",
    norms.ShiftedWeight: "rms_norm, eps=1e-06, weight_shift=1",
    norms.FloatWeight: "rms_norm, eps=1e-06",
    norms.NoWeight: "rms_norm, eps=1e-06, no weight",
    norms.RoundedToWeight: LLAMA,
    norms.CenteredNoBias: "layer_norm, eps=1e-06, no bias",
    norms.CenteredByFunction: "layer_norm, eps=1e-05, no weight",
    norms.OtherNames: "layer_norm, eps=1e-12",
    norms.UnusedWeight: "rms_norm, eps=1e-06, no weight",
}
NOT_REPRODUCED = "no form of the row program reproduces it"
NEAR_MISSES = {
    norms.EpsOutsideTheRoot: NOT_REPRODUCED,
    norms.EpsAsAFloor: NOT_REPRODUCED,
    norms.SoftplusWeight: NOT_REPRODUCED,
    norms.ClampedWeight: NOT_REPRODUCED,
    norms.UnbiasedVariance: NOT_REPRODUCED,
    norms.SumOfSquares: NOT_REPRODUCED,
    norms.Groups: NOT_REPRODUCED,
    norms.HalfShift: NOT_REPRODUCED,
    norms.ChannelsFirst: "a probe failed",
    norms.OddEps: "its eps cannot be determined; it acts like 1.235e-06",
    norms.TwoArguments: "its forward takes more than one argument",
    norms.DetachedStatistics: "its gradients are not those of the row program",
    norms.InPlace: "its forward changes its input",
    norms.Noisy: "",
    norms.ScaledIfOnes: "with its own weight",
    norms.ShapeDependent: "with its own weight",
    norms.ReturnsRstd: "the width of its rows cannot be determined",
}


def named(norm_class):
    """A subclass whose name says that it is a norm, so that it is in the report."""
    return type(f"{norm_class.__name__}Norm", (norm_class,), {})


def randomized(module):
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.normal_()
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm_class", FORMS, ids=lambda one: one.__name__)
def test_every_form_is_recognized(norm_class, dtype):
    model = nn.Sequential(nn.Linear(32, 32), randomized(norm_class())).to(dtype)
    x = torch.randn(7, 32, dtype=dtype)
    expected = model(x)
    report = rownorm.patch(model)
    assert [(one.name, one.class_name, one.form) for one in report.swapped] == [
        ("1", norm_class.__name__, FORMS[norm_class])
    ]
    assert not report.left
    torch.testing.assert_close(
        model(x), expected, rtol=1e-2 if dtype != torch.float32 else 1e-5, atol=1e-5
    )


@pytest.mark.parametrize("norm_class", FORMS, ids=lambda one: one.__name__)
def test_every_pair_of_dtypes_gives_what_the_module_gave(norm_class):
    """After the swap, for the dtypes that another model or autocast has. Dtypes are equal, and nearly all bits."""
    module = randomized(norm_class())
    assert len(rownorm.patch(module).swapped) == 1
    original = copy.deepcopy(module)
    rownorm.unpatch(original)
    rows = torch.randn(64, 32)
    for dtype, x_dtype in itertools.product(DTYPES, DTYPES):
        x = rows.to(x_dtype)
        y, expected = (copy.deepcopy(one).to(dtype)(x) for one in (module, original))
        assert y.dtype == expected.dtype
        if torch.finfo(y.dtype).eps > 1e-4:
            assert (y != expected).float().mean() < 0.01, (dtype, x_dtype)
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("norm_class", FORMS, ids=lambda one: one.__name__)
def test_autocast_gives_the_same_dtypes(norm_class):
    module = randomized(norm_class())
    rownorm.patch(module)
    original = copy.deepcopy(module)
    rownorm.unpatch(original)
    for x_dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(8, 32, dtype=x_dtype)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(module(x), original(x))


@pytest.mark.parametrize("norm_class", NEAR_MISSES, ids=lambda one: one.__name__)
def test_near_misses_are_left_alone(norm_class):
    module = named(norm_class)()
    report = rownorm.patch(nn.ModuleDict({"one": module}))
    assert not report.swapped
    (left,) = report.left
    assert left.reason.startswith(NEAR_MISSES[norm_class])
    assert not isinstance(module, Patched)


@pytest.mark.parametrize("norm_class", FORMS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("n", [3, 1000])
def test_narrow_and_wide_rows(norm_class, n):
    assert len(rownorm.patch(norm_class(n)).swapped) == 1


def test_modules_that_are_no_norms_are_not_listed():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * self.gamma

    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("never call this")

    model = nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(), nn.GELU(), Scale(), Failing(), nn.Embedding(3, 8)
    )
    report = rownorm.patch(model)
    assert (report.swapped, report.left) == ((), ())
    assert str(report) == "Sequential: no norms were found"


def test_channels_first_and_last_of_one_class():
    class LayerNorm2d(nn.LayerNorm):
        def __init__(self, n, channels_first):
            super().__init__(n)
            self.channels_first = channels_first

        def forward(self, x):
            if self.channels_first:
                return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return super().forward(x)

    report = rownorm.patch(
        nn.ModuleDict({"first": LayerNorm2d(8, True), "last": LayerNorm2d(8, False)})
    )
    assert [one.name for one in report.swapped] == ["last"]
    assert [one.name for one in report.left] == ["first"]


def test_a_probe_changes_nothing():
    """Weights, random numbers, training state, hooks."""

    class Random(norms.RoundedOnce):
        def forward(self, x):
            torch.rand(1)
            return super().forward(x)

    def refuse(*_):
        raise AssertionError("a hook was called")

    module = Random().train()
    module.register_forward_hook(refuse)
    module.register_forward_pre_hook(refuse)
    before, state = dict(module.__dict__), torch.get_rng_state()
    weight, version = module.weight, module.weight._version
    assert len(rownorm.patch(nn.Sequential(module)).swapped) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert module.weight is weight
    assert module.weight._version == version
    rownorm.unpatch(module)
    assert module.__dict__ == before


@pytest.mark.parametrize("what", ["buffer", "number", "list"])
def test_a_norm_with_side_effects_is_left_alone(what):
    class CountingNorm(norms.RoundedOnce):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(32))
            self.number, self.list = 0, []

        def forward(self, x):
            if what == "buffer":
                self.calls.add_(1)
            elif what == "number":
                self.number += 1
            else:
                self.list.append(x.shape)
            return super().forward(x)

    module = CountingNorm()
    (left,) = rownorm.patch(nn.Sequential(module)).left
    assert left.reason == "its forward changes its attributes or buffers"
    assert (module.calls.sum(), module.number, module.list) == (0, 0, [])


@pytest.mark.parametrize("mode", ["inference_mode", "no_grad", "autocast", "default_device"])
def test_modes_of_the_caller_do_not_matter(mode):
    contexts = {
        "inference_mode": torch.inference_mode(),
        "no_grad": torch.no_grad(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "default_device": torch.device("cpu"),
    }
    module = norms.MeanByProduct()
    with contexts[mode]:
        assert [one.form for one in rownorm.patch(module).swapped] == ["rms_norm, eps=1e-06"]


def test_equal_modules_share_a_probe(monkeypatch):
    calls = []
    original = norms.RoundedOnce.forward
    monkeypatch.setattr(
        norms.RoundedOnce, "forward", lambda self, x: calls.append(1) or original(self, x)
    )
    rownorm.patch(nn.Sequential(norms.RoundedOnce()))
    one = len(calls)
    calls.clear()
    rownorm.patch(nn.Sequential(*(norms.RoundedOnce() for _ in range(5))))
    assert len(calls) - one == 4 * 4  # each with its own weight
    report = rownorm.patch(nn.Sequential(norms.RoundedOnce(eps=1e-6), norms.RoundedOnce(eps=1e-5)))
    assert [one.form for one in report.swapped] == ["rms_norm, eps=1e-06", "rms_norm, eps=1e-05"]


def test_meta_device():
    with torch.device("meta"):
        module = norms.RoundedBeforeWeight()
    assert [one.form for one in rownorm.patch(module).swapped] == [LLAMA]
    assert module(torch.empty(3, 32, device="meta")).shape == (3, 32)


class Gated(nn.Module):
    """As in transformers: Qwen3-Next, Kimi Linear, and Mamba2 with groups of columns."""

    def __init__(self, kind, width=32, group_size=8):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.kind, self.variance_epsilon = kind, 1e-6
        if kind == "groups":
            self.group_size = group_size

    def forward(self, hidden_states, gate=None):
        dtype, x, gate = hidden_states.dtype, hidden_states.float(), gate.float()
        x = x * F.silu(gate) if self.kind in ("mamba", "groups") else x
        rows = x.unflatten(-1, (-1, self.group_size)) if self.kind == "groups" else x
        mean_square = rows.pow(2).mean(-1, keepdim=True)
        x = (rows * torch.rsqrt(mean_square + self.variance_epsilon)).reshape(x.shape)
        if self.kind == "kimi":
            return (self.weight.float() * x * torch.sigmoid(gate)).to(dtype)
        x = self.weight * x.to(dtype)
        return (x * F.silu(gate)).to(dtype) if self.kind == "qwen" else x


GATED = {
    "qwen": "gate last, gate_activation='silu', rounding=\"llama\"",
    "kimi": "gate last, gate_activation='sigmoid'",
    "mamba": "gate first, gate_activation='silu', rounding=\"llama\"",
    "groups": "gate first, gate_activation='silu', group_cols=8, rounding=\"llama\"",
}


@pytest.mark.parametrize("kind", GATED)
def test_gated_norms_are_recognized_and_keep_their_bits(kind):
    model = nn.ModuleDict({"norm": Gated(kind)}).bfloat16()
    norm = model["norm"]
    x, gate = (torch.randn(2, 7, 64).bfloat16()[..., 32:].requires_grad_() for _ in range(2))
    expected = norm(x, gate)
    gradients = torch.autograd.grad(expected, (x, gate, norm.weight), torch.ones_like(expected))
    report = rownorm.patch(model)
    assert [one.form for one in report.swapped] == [f"rms_norm, eps=1e-06, {GATED[kind]}"]
    y = norm(x, gate=gate)
    assert type(y.grad_fn).__name__ != type(expected.grad_fn).__name__
    assert torch.equal(y, expected)
    own = torch.autograd.grad(y, (x, gate, norm.weight), torch.ones_like(y))
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 * other.abs().max().item())
    wide = gate.float()  # another dtype was not proved, so the module's own forward computes it
    assert torch.equal(norm(x, wide), type(norm).rownorm_original.forward(norm, x, wide))
    assert rownorm.unpatch(model) == 1


def test_a_gated_norm_that_is_not_proved_is_reported():
    report = rownorm.patch(nn.Sequential(named(norms.RoundedGate)().bfloat16()))
    assert not report.swapped
    assert report.left[0].reason == "no form of the row program reproduces it in bfloat16"
