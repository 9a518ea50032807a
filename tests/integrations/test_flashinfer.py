"""Norms into the tensors that FlashInfer passes, against the public functions."""

import pytest
import torch

import rownorm
from rownorm.integrations import flashinfer
from rownorm.ops import into
from support.regimes import REGIMES, forced


@pytest.mark.parametrize("regime", [name for name in REGIMES if name != "grid"])
def test_every_regime_works_in_place(device, monkeypatch, regime):
    monkeypatch.setattr(into, "_prepared", {})
    x, residual = torch.randn(2, 3, 100, device=device).half()
    weight = torch.randn(100, device=device).half()
    with forced(regime):
        expected = rownorm.add_rms_norm(x, residual, weight, eps=1e-5)
        got = flashinfer.fused_add_rmsnorm(x, residual, weight, eps=1e-5)
    assert got[0] is x
    assert got[1] is residual
    assert torch.equal(x, expected[0])
    assert torch.equal(residual, expected[1])
    assert len(into._prepared) == 1


def test_results_are_those_of_the_public_functions(device):
    x = torch.randn(3, 40, device=device).bfloat16()
    weight, bias = torch.randn(2, 40, device=device)
    for name, arguments, expected in (
        ("rmsnorm", (weight,), rownorm.rms_norm(x, weight, eps=1e-3)),
        ("gemma_rmsnorm", (weight,), rownorm.rms_norm(x, weight, eps=1e-3, weight_shift=1.0)),
        ("layernorm", (weight, bias), rownorm.layer_norm(x, weight, bias, eps=1e-3)),
        ("fused_rmsnorm_silu", (weight,), rownorm.rms_norm(x, weight, eps=1e-3, activation="silu")),
    ):
        output = torch.full_like(x, torch.nan)
        getattr(flashinfer, name)(x, *arguments, output, eps=1e-3)
        assert torch.equal(output, expected)
    residual = torch.randn_like(x)
    y, h = rownorm.add_rms_norm(x, residual, weight, eps=1e-3, weight_shift=1.0)
    got = flashinfer.gemma_fused_add_rmsnorm(x, residual, weight, eps=1e-3)
    assert torch.equal(got[0], y)
    assert torch.equal(got[1], h)


@pytest.mark.parametrize("shape", [(40,), (2, 3, 40)])
def test_other_shapes_and_dtypes_take_the_public_functions(device, shape):
    x, residual = torch.randn(2, *shape, device=device).half()
    weight = torch.randn(40, device=device, requires_grad=True)
    output = torch.full_like(x, torch.nan, dtype=torch.float32)
    flashinfer.rmsnorm(x, weight, output, eps=1e-3)
    with torch.no_grad():
        assert torch.equal(output, rownorm.rms_norm(x, weight, eps=1e-3, out_dtype=torch.float32))
        expected = rownorm.add_rms_norm(x, residual, weight, eps=1e-3)
    flashinfer.fused_add_rmsnorm(x, residual, weight, eps=1e-3)
    assert torch.equal(x, expected[0])
    assert torch.equal(residual, expected[1])


def test_what_cannot_be_computed_is_refused():
    x, weight = torch.randn(3, 40), torch.randn(40)
    with pytest.raises(ValueError, match="weight must have shape"):
        flashinfer.rmsnorm(x, weight[:20], torch.empty_like(x), eps=1e-6)
    quantized = torch.empty(3, 40, dtype=torch.float8_e4m3fn)
    with pytest.raises(TypeError, match="out_dtype"):
        flashinfer.fused_rmsnorm_silu(x, weight, quantized, eps=1e-6)
