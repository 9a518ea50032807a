"""bf16 in the interpreter, as a GPU computes it."""

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

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


@triton.jit
def merge(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    return mean_a + delta * (n_b / n), m2_a + m2_b + delta * delta * (n_a * n_b / n), n


@triton.jit
def later(a, b):
    return b


@triton.jit
def reduce_by_functions(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    mean, m2, n = tl.reduce((x, tl.zeros_like(x), tl.full((BLOCK,), 1.0, tl.float32)), 0, merge)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, m2 / n)
    tl.store(out_ptr + 2, tl.reduce(x, 0, later))
    tile = tl.reshape(x, (4, BLOCK // 4))
    tl.store(out_ptr + 3, tl.reduce(tile, None, later))
    last = tl.reduce(tile, 1, later, keep_dims=True)
    tl.store(out_ptr + 4 + tl.arange(0, 4)[:, None], last)


def test_a_function_of_ones_own_reduces_by_a_tree():
    """Each element once, in order; a large mean loses no more than on a GPU, where 512 lanes are nine steps."""
    from rownorm_lab.interpreter.arithmetic import mended

    x, out = 1000 + torch.randn(512), torch.empty(8)
    with mended():
        reduce_by_functions[(1,)](x, out, BLOCK=512)
    var, mean = torch.var_mean(x.double(), correction=0)
    assert abs(out[0] - mean) < 2e-4
    assert abs(out[1] - var) < 1e-5 * var
    assert torch.equal(out[2:], torch.cat([x[-1:], x[-1:], x[127::128]]))


def test_a_block_is_neither_true_nor_false():
    """Of two masks in ``and``, the interpreter takes the second; Triton's compiler warns and takes both."""
    from rownorm_lab.interpreter.arithmetic import mended

    scope, semantic = interpreter._LangPatchScope(), interpreter.interpreter_semantic
    with mended():
        interpreter._patch_lang_tensor(tl.tensor, scope)  # as at every launch
        try:
            ok, few = semantic.arange(0, 4), semantic.to_tensor(1, False)
            assert few
            assert not semantic.to_tensor(0, False)
            with pytest.raises(ValueError, match="write & for and"):
                bool(ok)
        finally:
            scope.restore()
