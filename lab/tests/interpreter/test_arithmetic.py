"""bf16 in the interpreter, as a GPU computes it."""

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")


@triton.jit
def compute(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes)
    y = tl.load(y_ptr + lanes)
    tl.store(out_ptr + lanes, x * y)
    tl.store(out_ptr + BLOCK + lanes, x + tl.full((BLOCK,), 1.5, tl.bfloat16))
    tl.store(out_ptr + 2 * BLOCK + lanes, tl.where(x < y, x, y))
    tl.store(out_ptr + 3 * BLOCK + lanes, (x.to(tl.float32) * y.to(tl.float32)).to(tl.bfloat16))
    tl.store(out_ptr + 4 * BLOCK + lanes, libdevice.rsqrt(tl.abs(y.to(tl.float32))).to(tl.bfloat16))
    tl.store(out_ptr + 5 * BLOCK + lanes, tl.max(x, axis=0) + 0 * x)


def test_bf16_is_rounded_as_torch_does():
    from rownorm_lab.interpreter.arithmetic import mended

    x, y = torch.randn(2, 64).bfloat16()
    out = torch.empty(6, 64, dtype=torch.bfloat16)
    with mended():
        compute[(1,)](x, y, out, BLOCK=64)
    expected = [x * y, x + 1.5, torch.minimum(x, y), x * y, y.float().abs().rsqrt().bfloat16()]
    for got, want in zip(out, [*expected, x.max().expand(64)], strict=True):
        assert torch.equal(got, want)


def test_rounding_is_to_the_nearest_even_value():
    from rownorm_lab.interpreter.arithmetic import narrow

    values = torch.cat([torch.randn(1000) * 10.0**power for power in range(-38, 38, 4)])
    values = torch.cat(
        [values, torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 3.4e38])]
    )
    got = torch.from_numpy(narrow(values.numpy()).data.view("int16")).view(torch.bfloat16)
    assert torch.equal(got.nan_to_num(7.0), values.bfloat16().nan_to_num(7.0))
