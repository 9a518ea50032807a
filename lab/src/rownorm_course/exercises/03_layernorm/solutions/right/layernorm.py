"""LayerNorm: three ways to a variance that survives a large mean, and a row that shows why.

Answers to the questions of the text:

1. In registers: the block that was just loaded, the vectors of partial sums, mean and rstd. In global memory: x, weight,
   bias and y. Nothing else is stored.
2. When the rows that are being worked on do not fit in L2 between the passes: wide rows, many programs at once. On an H200,
   two passes over 8192 rows of 65536 bf16 columns read 1,656 MB of 1,074: half of the second pass comes from memory.
3. The data set offset: rownorm check --data offset.
"""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def store_row(x_row_ptr, weight_ptr, bias_ptr, y_row_ptr, mean, rstd, n_cols, BLOCK: tl.constexpr):
    """The last pass of all three: y = (x - mean) * rstd * weight + bias."""
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        col_ok = cols < n_cols
        x = tl.load(x_row_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * weight + bias
        tl.store(y_row_ptr + cols, y.to(y_row_ptr.dtype.element_ty), mask=col_ok)


@triton.jit
def three_pass_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    """Mean, squared deviations, output: three loops over the row."""
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride

    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        sums += tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=0) / n_cols

    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        deviation = tl.where(cols < n_cols, x - mean, 0.0)
        squares += deviation * deviation
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + tl.cast(eps, tl.float32))

    y_row_ptr = y_ptr + row * y_row_stride
    store_row(x_row_ptr, weight_ptr, bias_ptr, y_row_ptr, mean, rstd, n_cols, BLOCK)


@triton.jit
def two_pass_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    """Sums of x - K and of its square, K the first element; then the output."""
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride
    shift = tl.load(x_row_ptr).to(tl.float32)

    sums = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        shifted = tl.where(cols < n_cols, x - shift, 0.0)
        sums += shifted
        squares += shifted * shifted
    moved = tl.sum(sums, axis=0) / n_cols
    variance = tl.maximum(tl.sum(squares, axis=0) / n_cols - moved * moved, 0.0)
    rstd = 1.0 / tl.sqrt(variance + tl.cast(eps, tl.float32))

    y_row_ptr = y_ptr + row * y_row_stride
    store_row(x_row_ptr, weight_ptr, bias_ptr, y_row_ptr, shift + moved, rstd, n_cols, BLOCK)


@triton.jit
def welford_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    """Count, mean and m2 of each block, merged; then the output."""
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride

    count = tl.full((), 0.0, tl.float32)
    mean = tl.full((), 0.0, tl.float32)
    m2 = tl.full((), 0.0, tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        block_count = tl.cast(tl.minimum(n_cols - first, BLOCK), tl.float32)
        block_mean = tl.sum(x, axis=0) / block_count
        deviation = tl.where(cols < n_cols, x - block_mean, 0.0)
        block_m2 = tl.sum(deviation * deviation, axis=0)

        delta = block_mean - mean
        total = count + block_count
        mean += delta * (block_count / total)
        m2 += block_m2 + delta * delta * (count * block_count / total)
        count = total
    rstd = 1.0 / tl.sqrt(m2 / n_cols + tl.cast(eps, tl.float32))

    y_row_ptr = y_ptr + row * y_row_stride
    store_row(x_row_ptr, weight_ptr, bias_ptr, y_row_ptr, mean, rstd, n_cols, BLOCK)


def _start(kernel, x, weight, bias, eps):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    strides = (x.stride(0), y.stride(0))
    kernel[(x.shape[0],)](x, weight, bias, y, *strides, x.shape[1], eps, BLOCK=BLOCK)
    return y


def layer_norm_three_pass(x, weight, bias, eps=1e-5):
    """x: (rows, cols), any row stride; weight, bias: (cols,). Returns y, shaped and typed like x."""
    return _start(three_pass_kernel, x, weight, bias, eps)


def layer_norm_two_pass(x, weight, bias, eps=1e-5):
    """The same with two loops over the row: shifted sums, then the output."""
    return _start(two_pass_kernel, x, weight, bias, eps)


def layer_norm_welford(x, weight, bias, eps=1e-5):
    """The same with two loops over the row: merged blocks, then the output."""
    return _start(welford_kernel, x, weight, bias, eps)


@triton.jit
def resident_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    """The whole row is one block in registers: one pass, and the mean before the deviations."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=col_ok, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    deviation = tl.where(col_ok, x - mean, 0.0)
    variance = tl.sum(deviation * deviation, axis=0) / n_cols
    y = deviation * (1.0 / tl.sqrt(variance + tl.cast(eps, tl.float32))) * weight + bias
    tl.store(y_ptr + row * y_row_stride + cols, y.to(y_ptr.dtype.element_ty), mask=col_ok)


def layer_norm_tuned(x, weight, bias, eps=1e-5):
    """One pass for 128 to 8192 columns: block and warps follow from the width."""
    n_rows, n_cols = x.shape
    y = torch.empty((n_rows, n_cols), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(n_cols)
    warps = min(16, max(1, block // (32 * 8)))  # 8 elements of 16 bits for each thread: 16 bytes
    resident_kernel[(n_rows,)](
        x, weight, bias, y, x.stride(0), y.stride(0), n_cols, eps, BLOCK=block, num_warps=warps
    )
    return y


def breaking_row():
    """A mean of 100000 and a spread of about 1: the squares have steps of 1024, the variance is about 1."""
    return 1e5 + torch.linspace(-2.0, 2.0, 1024)


if __name__ == "__main__":  # python layernorm.py
    x = 3 + torch.randn(4, 1000, device=DEVICE)
    weight, bias = torch.rand(2, 1000, device=DEVICE)
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    expected = (x - mean) * torch.rsqrt(var + 1e-5) * weight + bias
    functions = (layer_norm_three_pass, layer_norm_two_pass, layer_norm_welford, layer_norm_tuned)
    for function in functions:
        y = function(x, weight, bias)
        print(function.__name__, "largest error", (y - expected).abs().max().item())
