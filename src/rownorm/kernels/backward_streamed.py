"""Backward kernels for rows that no program holds: what is read for the two means of a row is read again.

    backward_sums   partial a and b of one part of a row (regimes looped and split, first half)
    backward_apply  one block of columns over many rows: dx, and the sums over those rows (second half)

Equations and conventions as in ``backward``.
"""

import triton
import triton.language as tl

from .activations import is_precise
from .arithmetic import gradient_before_affine, load_columns, load_h, store_row, widened


@triton.jit(
    do_not_specialize=[
        "dy_row_stride",
        "h_row_stride",
        "n_rows",
        "n_cols",
        "n_parts",
        "part_blocks",
    ]
)
def backward_sums(
    dy_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    mu_ptr,
    rstd_ptr,
    parts_ptr,  # (2, n_rows, n_parts): sums of g * x_hat, then of g
    dy_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    n_parts,
    part_blocks,
    ALIGN: tl.constexpr,
    CENTER: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A gradient has the dtype of what it is the gradient of.
    PRECISE: tl.constexpr = is_precise(dy_ptr, h_ptr, pre_bias_ptr, weight_ptr, bias_ptr)
    pid = tl.program_id(0).to(tl.int64)
    row = pid // n_parts
    first_col = (pid % n_parts).to(tl.int32) * part_blocks * BLOCK_COLS
    end_col = tl.minimum(first_col + part_blocks * BLOCK_COLS, n_cols * ALIGN)
    h_row = row * h_row_stride * ALIGN
    dy_row = row * dy_row_stride * ALIGN
    rstd = tl.load(rstd_ptr + row)
    mu = tl.load(mu_ptr + row) if CENTER else tl.zeros_like(rstd)

    lanes = tl.arange(0, BLOCK_COLS)[None, :]
    sum_gx = tl.zeros((1, BLOCK_COLS), COMPUTE)
    sum_g = tl.zeros((1, BLOCK_COLS), COMPUTE)
    for start in range(first_col, end_col, BLOCK_COLS):
        cols = start + lanes
        ok = cols < end_col
        pre_bias = load_columns(pre_bias_ptr, cols, ok) if pre_bias_ptr is not None else None
        weight = load_columns(weight_ptr, cols, ok) if weight_ptr is not None else None
        bias = load_columns(bias_ptr, cols, ok) if bias_ptr is not None else None
        h = load_h(h_ptr, None, pre_bias, h_row, h_row, cols, ok, COMPUTE, "")
        dy = widened(tl.load(dy_ptr + dy_row + cols, mask=ok, other=0.0), COMPUTE)
        x_hat = (tl.where(ok, h - mu, 0.0) if CENTER else h) * rstd
        _, _, g = gradient_before_affine(
            dy, x_hat, weight, bias, WEIGHT_SHIFT, ACTIVATION, PRECISE, ROUND_TO, COMPUTE
        )
        sum_gx += g * x_hat
        sum_g += g
    slot = parts_ptr + pid + tl.zeros((1, 1), tl.int64)
    tl.store(slot, tl.sum(sum_gx, axis=1, keep_dims=True))
    if CENTER:
        offset = tl.cast(n_rows, tl.int64) * n_parts
        tl.store(slot + offset, tl.sum(sum_g, axis=1, keep_dims=True))


@triton.jit(
    do_not_specialize=[
        "dy_row_stride",
        "dh_row_stride",
        "h_row_stride",
        "n_rows",
        "n_cols",
        "n_parts",
        "n_col_blocks",
        "rows_per_program",
    ]
)
def backward_apply(
    dy_ptr,
    dh_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    mu_ptr,
    rstd_ptr,
    parts_ptr,
    dx_ptr,
    dresidual_ptr,
    dpre_bias_partial_ptr,  # the last three: (row groups, n_cols) partial sums
    dweight_partial_ptr,
    dbias_partial_ptr,
    dy_row_stride,
    dh_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    n_parts,
    n_col_blocks,
    rows_per_program,
    ALIGN: tl.constexpr,
    CENTER: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    # A gradient has the dtype of what it is the gradient of.
    PRECISE: tl.constexpr = is_precise(dy_ptr, h_ptr, pre_bias_ptr, weight_ptr, bias_ptr)
    n_cols = n_cols * ALIGN
    n = tl.cast(n_cols, COMPUTE)
    pid = tl.program_id(0)
    group = pid // n_col_blocks
    cols = (pid % n_col_blocks) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    ok = cols < n_cols
    pre_bias = load_columns(pre_bias_ptr, cols, ok) if pre_bias_ptr is not None else None
    weight = load_columns(weight_ptr, cols, ok) if weight_ptr is not None else None
    bias = load_columns(bias_ptr, cols, ok) if bias_ptr is not None else None
    parts = tl.arange(0, BLOCK_PARTS)[None, :]
    part_ok = parts < n_parts
    sums_of_g = tl.cast(n_rows, tl.int64) * n_parts
    dpre_bias = tl.zeros((1, BLOCK_COLS), COMPUTE)
    dweight = tl.zeros((1, BLOCK_COLS), COMPUTE)
    dbias = tl.zeros((1, BLOCK_COLS), COMPUTE)

    first_row = tl.cast(group, tl.int64) * rows_per_program
    for row in range(first_row, tl.minimum(first_row + rows_per_program, n_rows)):
        h_row = row * h_row_stride * ALIGN
        h = load_h(h_ptr, None, pre_bias, h_row, h_row, cols, ok, COMPUTE, "")
        dy_row = row * dy_row_stride * ALIGN
        dy = widened(tl.load(dy_ptr + dy_row + cols, mask=ok, other=0.0), COMPUTE)
        rstd = tl.load(rstd_ptr + row)
        mu = tl.load(mu_ptr + row) if CENTER else tl.zeros_like(rstd)
        slots = parts_ptr + row * n_parts + parts
        a = tl.sum(tl.load(slots, mask=part_ok, other=0.0), axis=1, keep_dims=True) / n

        x_hat = (tl.where(ok, h - mu, 0.0) if CENTER else h) * rstd
        seen, dz, g = gradient_before_affine(
            dy, x_hat, weight, bias, WEIGHT_SHIFT, ACTIVATION, PRECISE, ROUND_TO, COMPUTE
        )
        dx = g - x_hat * a
        if CENTER:
            sum_g = tl.load(slots + sums_of_g, mask=part_ok, other=0.0)
            dx -= tl.sum(sum_g, axis=1, keep_dims=True) / n
        dx *= rstd
        if dh_ptr is not None:
            dh_row = row * dh_row_stride * ALIGN
            dh = tl.load(dh_ptr + dh_row + cols, mask=ok, other=0.0)
            dx += widened(dh, COMPUTE)

        out = row * n_cols + cols
        if dx_ptr is not None:
            store_row(dx_ptr + out, dx, ok)
        if dresidual_ptr is not None:
            store_row(dresidual_ptr + out, dx, ok)
        if dpre_bias_partial_ptr is not None:
            dpre_bias += dx
        if dweight_partial_ptr is not None:
            dweight += dz * seen
        if dbias_partial_ptr is not None:
            dbias += dz

    partial = tl.cast(group, tl.int64) * n_cols + cols
    if dpre_bias_partial_ptr is not None:
        tl.store(dpre_bias_partial_ptr + partial, dpre_bias, mask=ok)
    if dweight_partial_ptr is not None:
        tl.store(dweight_partial_ptr + partial, dweight, mask=ok)
    if dbias_partial_ptr is not None:
        tl.store(dbias_partial_ptr + partial, dbias, mask=ok)
