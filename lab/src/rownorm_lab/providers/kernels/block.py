"""One program per row; the row is one block, read once and written once."""

# mypy: ignore-errors
# Triton's language; mypy cannot check it.

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * row_stride
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols

    x = tl.load(x_ptr + start + cols, mask=col_ok, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / n_cols + tl.cast(eps, tl.float32))
    y = x * rstd * tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)

    tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=col_ok)


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * row_stride
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols

    x = tl.load(x_ptr + start + cols, mask=col_ok, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    deviation = tl.where(col_ok, x - mean, 0.0)  # past the end of the row it would be -mean
    rstd = 1.0 / tl.sqrt(tl.sum(deviation * deviation, axis=0) / n_cols + tl.cast(eps, tl.float32))
    y = deviation * rstd * tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)

    tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=col_ok)
