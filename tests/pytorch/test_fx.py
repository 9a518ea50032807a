"""``torch.fx.symbolic_trace`` takes the norms as leaves, as it takes torch's."""

import pickle

import pytest
import torch
from torch import nn

import rownorm

every_module = pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])


class OwnNorm(nn.Module):
    """A norm that only a probe recognizes."""

    def __init__(self, n_cols):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n_cols))

    def forward(self, rows):
        return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class OwnLayerNorm(nn.LayerNorm):
    """A subclass outside of torch.nn."""


def model_of(*norms):
    layers = [layer for norm in norms for layer in (nn.Linear(32, 32), norm)]
    return nn.Sequential(*layers)


def targets(traced):
    return [
        (node.op, node.target)
        for node in traced.graph.nodes
        if node.op not in ("placeholder", "output")
    ]


def gradients(model, x):
    model.zero_grad()
    model(x).sin().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@every_module
def test_graph_is_that_of_torchs_norms(name):
    graphs = [
        targets(torch.fx.symbolic_trace(model_of(getattr(m, name)(32))))
        for m in (rownorm.nn, torch.nn)
    ]
    assert graphs[0] == graphs[1] == [("call_module", "0"), ("call_module", "1")]


@every_module
def test_traced_model_trains(name, device):
    model = model_of(getattr(rownorm.nn, name)(32)).to(device)
    traced = torch.fx.symbolic_trace(model)
    assert traced.get_submodule("1") is model[1]
    x = torch.randn(4, 32, device=device)
    torch.testing.assert_close(traced(x), model(x), rtol=0, atol=0)
    expected = gradients(model, x)
    torch.testing.assert_close(gradients(traced, x), expected, rtol=0, atol=0)


def test_a_traced_model_can_be_transformed_copied_and_saved(device):
    model = model_of(rownorm.nn.LayerNorm(32), rownorm.nn.RMSNorm(32)).to(device)
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(4, 32, device=device)
    again = torch.fx.symbolic_trace(traced)
    for other in (again, torch.fx.Transformer(traced).transform()):
        assert targets(other) == targets(traced)
        torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)
    loaded = pickle.loads(pickle.dumps(traced))
    assert targets(loaded) == targets(traced)
    torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)


def test_patched_model(device):
    """Norms that were swapped by type and by a probe, before and after the trace."""
    model = model_of(nn.LayerNorm(32), OwnLayerNorm(32), OwnNorm(32)).to(device)
    rownorm.patch(model)
    traced = torch.fx.symbolic_trace(model)
    assert targets(traced) == [("call_module", str(index)) for index in range(6)]
    x = torch.randn(4, 32, device=device)
    expected = gradients(model, x)
    torch.testing.assert_close(gradients(traced, x), expected, rtol=0, atol=0)

    traced = torch.fx.symbolic_trace(model_of(nn.LayerNorm(32)).to(device))
    before = traced(x)
    assert len(rownorm.patch(traced).swapped) == 1
    torch.testing.assert_close(traced(x), before)


class WithTwo(nn.Module):
    """A model that calls a norm with a second tensor."""

    def __init__(self, norm, keyword=None):
        super().__init__()
        self.norm, self.keyword = norm, keyword

    def forward(self, x, other):
        y = self.norm(x, other) if self.keyword is None else self.norm(x, **{self.keyword: other})
        return y[0] if isinstance(self.norm, TUPLES) else y


TUPLES = (rownorm.nn.AdaLayerNormZero, rownorm.nn.AdaLayerNormZeroSingle)


class OwnGatedNorm(OwnNorm):
    """A gated norm that only a probe recognizes."""

    def forward(self, rows, gate):
        return super().forward(rows) * torch.sigmoid(gate)


@pytest.mark.parametrize(
    ("make", "keyword"),
    [
        (lambda: rownorm.nn.RMSNormGated(32), None),
        (lambda: rownorm.nn.RMSNormGated(32), "gate"),
        (lambda: rownorm.nn.AdaLayerNormContinuous(32, 32), None),
        (lambda: rownorm.nn.AdaLayerNormZero(32), "emb"),
        (lambda: rownorm.nn.AdaLayerNormZeroSingle(32), None),
        (lambda: patched(OwnGatedNorm(32)), None),
        (lambda: patched(OwnGatedNorm(32)), "gate"),
    ],
    ids=["gated", "gate by name", "continuous", "zero", "single", "patched", "patched by name"],
)
def test_norms_of_two_tensors_are_leaves(make, keyword, device):
    model = WithTwo(make().to(device), keyword)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["norm"]
    is_gated = isinstance(model.norm, rownorm.nn.RMSNormGated | OwnGatedNorm)
    x = torch.randn(2, 4, 32, device=device)
    other = torch.randn(2, 4, 32, device=device) if is_gated else torch.randn(2, 32, device=device)
    torch.testing.assert_close(traced(x, other), model(x, other), rtol=0, atol=0)


def patched(norm):
    assert len(rownorm.patch(norm).swapped) == 1
    return norm
