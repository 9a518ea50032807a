"""Swapped modules on the device of the kernels: a GPU, or the CPU in Triton's interpreter."""

import copy

import pytest
import torch

import rownorm
from support import norm_modules as norms

FP16, FP32 = torch.float16, torch.float32


@pytest.mark.parametrize(
    ("norm_class", "x_dtype", "dtype"),
    [
        (norms.RoundedBeforeWeight, FP16, FP16),
        (norms.RoundedBeforeWeight, FP16, FP32),
        (norms.RoundedToWeight, FP16, FP32),
        (norms.ShiftedWeight, FP16, FP16),
        (norms.OtherNames, FP32, FP32),
        (norms.NoWeight, FP16, None),
    ],
)
def test_results_and_gradients(norm_class, x_dtype, dtype, device):
    module = norm_class().to(device, dtype)
    for parameter in module.parameters():
        parameter.data.normal_()
    original = copy.deepcopy(module)
    assert len(rownorm.patch(module).swapped) == 1
    x, dy = torch.randn(2, 6, 32, device=device).to(x_dtype)
    results = []
    for one in (module, original):
        leaf = x.clone().requires_grad_()
        y = one(leaf)
        inputs = [leaf, *one.parameters()]
        results.append([y, *torch.autograd.grad(y, inputs, dy.to(y.dtype))])
    assert module(x).dtype == original(x).dtype
    (y, *gradients), (expected, *others) = results
    coarsest = max(torch.finfo(one).eps for one in (x_dtype, y.dtype))
    assert ((y - expected).abs() > 1e-5 * expected.abs() + 1e-6).float().mean() < 0.02
    for gradient, other in zip(gradients, others, strict=True):
        assert gradient.dtype == other.dtype
        torch.testing.assert_close(
            gradient.float(), other.float(), rtol=4 * coarsest, atol=8 * coarsest
        )
