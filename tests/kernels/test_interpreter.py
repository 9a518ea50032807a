"""The tests' changes to Triton's interpreter: ``support/interpreter.py``."""

import pytest
import torch
import triton
import triton.language as tl

import rownorm
from support.regimes import ON_GPU

pytestmark = pytest.mark.skipif(ON_GPU, reason="kernels run on the GPU, not in the interpreter")


@triton.jit
def _fails():
    tl.static_assert(False, "on purpose")


def test_the_language_is_restored_after_a_kernel():
    before = tl.load, tl.core.load, vars(tl.tensor).get("__bool__"), tl.sum, tl.core.reduce
    x = torch.randn(3, 40, requires_grad=True)
    rownorm.layer_norm(x).sum().backward()
    assert before == (
        tl.load,
        tl.core.load,
        vars(tl.tensor).get("__bool__"),
        tl.sum,
        tl.core.reduce,
    )


def test_the_language_is_restored_after_an_error():
    before = tl.load, tl.static_assert
    for _ in range(2):
        with pytest.raises(Exception, match="on purpose"):
            _fails[(1,)]()
    assert before == (tl.load, tl.static_assert)


@triton.jit
def _to_bf16_and_back(x_ptr, y_ptr, z_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    y = tl.load(x_ptr + lanes).to(tl.bfloat16)
    tl.store(y_ptr + lanes, y)
    tl.store(z_ptr + lanes, y.to(tl.float32))


def test_bf16_is_rounded_to_nearest():
    """As torch rounds, also ties, subnormals, overflow and what is not finite."""
    x = torch.randn(64) * torch.logspace(-44, 38, 64, dtype=torch.float64).float()
    x[:7] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8])
    y, z = torch.empty(64, dtype=torch.bfloat16), torch.empty(64)
    _to_bf16_and_back[(1,)](x, y, z, 64)
    assert torch.equal(y.view(torch.int16), x.bfloat16().view(torch.int16))
    assert torch.equal(z, x.bfloat16().float())
    x.fill_(torch.nan)
    _to_bf16_and_back[(1,)](x, y, z, 64)
    assert y.isnan().all()
    assert z.isnan().all()
