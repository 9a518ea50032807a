"""The kernel and its function."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    """One program computes one row, in blocks of BLOCK columns."""
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride
    y_row_ptr = y_ptr + row * y_row_stride

    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        squares += x * x
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + tl.cast(eps, tl.float32))

    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        col_ok = cols < n_cols
        x = tl.load(x_row_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        tl.store(y_row_ptr + cols, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=col_ok)


def rms_norm(x, weight, eps=1e-6, block=1024):
    """x: (rows, cols), any row stride; weight: (cols,). Returns y, shaped and typed like x."""
    n_rows, n_cols = x.shape
    y = torch.empty((n_rows, n_cols), dtype=x.dtype, device=x.device)
    rms_norm_kernel[(n_rows,)](x, weight, y, x.stride(0), y.stride(0), n_cols, eps, BLOCK=block)
    return y
