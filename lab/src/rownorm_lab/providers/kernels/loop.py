"""One program per row; a loop over blocks for each statistic, and one for the output."""

# mypy: ignore-errors
# Triton's language; mypy cannot check it.

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * row_stride

    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        squares += x * x
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + tl.cast(eps, tl.float32))

    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        col_ok = cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=col_ok, other=0.0).to(tl.float32)
        y = x * rstd * tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=col_ok)


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * row_stride

    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        sums += tl.load(x_ptr + start + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=0) / n_cols

    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        col_ok = cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=col_ok, other=0.0).to(tl.float32)
        deviation = tl.where(col_ok, x - mean, 0.0)  # past the end of the row it would be -mean
        squares += deviation * deviation
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + tl.cast(eps, tl.float32))

    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        col_ok = cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=col_ok, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=col_ok)
