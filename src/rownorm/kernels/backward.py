"""Backward kernels.

    x_hat = (h - mu) * rstd                       dz = dy * activation'(z)
    g     = dz * (weight + WEIGHT_SHIFT)          a  = mean(g * x_hat),  b = mean(g) if CENTER else 0
    dx    = rstd * (g - b - a * x_hat) [+ dh]
    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx

    backward_tile   whole rows, a persistent grid: reads h and dy once, writes dx once, and keeps the
                    sums over its rows in registers (regimes tile and resident)
    backward_sums   partial a and b of one part of a row (regimes looped and split, first half)
    backward_apply  one block of columns over many rows: dx, and the sums over those rows (second half)
    column_sums     adds the sums of all programs, in a fixed order, and rounds them once

Where ROUND_TO names a dtype, the weight saw a rounded ``x_hat``: dweight uses that one, and rounding counts
as the identity, as it does in autograd. Strides and sizes arrive divided by ALIGN, as in ``forward``.
"""

import triton
import triton.language as tl

from .arithmetic import (
    activation_gradient,
    affine,
    in_range,
    load_columns,
    load_h,
    normalize,
    scale,
)


@triton.jit
def _load_statistics(mu_ptr, rstd_ptr, rows, row_ok, CENTER: tl.constexpr):
    rstd = tl.load(rstd_ptr + rows, mask=row_ok, other=0.0)
    mu = tl.load(mu_ptr + rows, mask=row_ok, other=0.0) if CENTER else tl.zeros_like(rstd)
    return mu, rstd


@triton.jit
def _gradient_before_affine(
    dy,
    deviation,
    rstd,
    weight,
    bias,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """(x_hat, x_hat as the weight saw it, dz, g). ``dy`` is 0 outside the row, so dz and g are too."""
    x_hat = deviation * rstd
    seen = normalize(deviation, rstd, ROUND_TO, COMPUTE)
    if ACTIVATION is not None:
        z = affine(seen, weight, bias, WEIGHT_SHIFT, COMPUTE)
        dz = dy * activation_gradient(z, ACTIVATION)
    else:
        dz = dy
    g = scale(dz, weight, WEIGHT_SHIFT, COMPUTE)
    return x_hat, seen, dz, g


@triton.jit(
    do_not_specialize=["dy_row_stride", "dh_row_stride", "h_row_stride", "n_rows", "n_cols"]
)
def backward_tile(
    dy_ptr,
    dh_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    mu_ptr,
    rstd_ptr,
    dx_ptr,
    dresidual_ptr,
    dpre_bias_partial_ptr,  # the last three: (programs, n_cols) partial sums
    dweight_partial_ptr,
    dbias_partial_ptr,
    dy_row_stride,
    dh_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    ALIGN: tl.constexpr,
    CENTER: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    STAGES: tl.constexpr,
):
    n_cols = n_cols * ALIGN
    n = tl.cast(n_cols, COMPUTE)
    lanes = tl.arange(0, BLOCK_ROWS)[:, None]
    cols = tl.arange(0, BLOCK_COLS)[None, :]
    col_ok = in_range(cols, n_cols, EVEN_COLS)
    pre_bias = load_columns(pre_bias_ptr, cols, col_ok) if pre_bias_ptr is not None else None
    weight = load_columns(weight_ptr, cols, col_ok) if weight_ptr is not None else None
    bias = load_columns(bias_ptr, cols, col_ok) if bias_ptr is not None else None
    dpre_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    dweight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    dbias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)

    n_tiles = tl.cdiv(n_rows, BLOCK_ROWS)
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), num_stages=STAGES):
        rows = tl.cast(tile, tl.int64) * BLOCK_ROWS + lanes
        row_ok = in_range(rows, n_rows, BLOCK_ROWS == 1)
        ok = row_ok & col_ok
        out = rows * n_cols + cols
        h_row = rows * h_row_stride * ALIGN
        h = load_h(h_ptr, None, pre_bias, h_row, h_row, cols, ok, COMPUTE, "")
        dy_row = rows * dy_row_stride * ALIGN
        dy = tl.load(dy_ptr + dy_row + cols, mask=ok, other=0.0).to(COMPUTE)
        mu, rstd = _load_statistics(mu_ptr, rstd_ptr, rows, row_ok, CENTER)

        deviation = h - mu if CENTER else h
        x_hat, seen, dz, g = _gradient_before_affine(
            dy, deviation, rstd, weight, bias, WEIGHT_SHIFT, ACTIVATION, ROUND_TO, COMPUTE
        )
        dx = g - x_hat * (tl.sum(g * x_hat, axis=1, keep_dims=True) / n)
        if CENTER:
            dx -= tl.sum(g, axis=1, keep_dims=True) / n
        dx *= rstd
        if dh_ptr is not None:
            dh_row = rows * dh_row_stride * ALIGN
            dx += tl.load(dh_ptr + dh_row + cols, mask=ok, other=0.0).to(COMPUTE)

        if dx_ptr is not None:
            tl.store(dx_ptr + out, dx.to(dx_ptr.dtype.element_ty), mask=ok)
        if dresidual_ptr is not None:
            tl.store(dresidual_ptr + out, dx.to(dresidual_ptr.dtype.element_ty), mask=ok)
        if dpre_bias_partial_ptr is not None:
            dpre_bias += dx
        if dweight_partial_ptr is not None:
            dweight += dz * seen
        if dbias_partial_ptr is not None:
            dbias += dz

    partial = tl.program_id(0).to(tl.int64) * n_cols + cols
    if dpre_bias_partial_ptr is not None:
        tl.store(
            dpre_bias_partial_ptr + partial, tl.sum(dpre_bias, axis=0, keep_dims=True), mask=col_ok
        )
    if dweight_partial_ptr is not None:
        tl.store(
            dweight_partial_ptr + partial, tl.sum(dweight, axis=0, keep_dims=True), mask=col_ok
        )
    if dbias_partial_ptr is not None:
        tl.store(dbias_partial_ptr + partial, tl.sum(dbias, axis=0, keep_dims=True), mask=col_ok)


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
        dy = tl.load(dy_ptr + dy_row + cols, mask=ok, other=0.0).to(COMPUTE)
        deviation = h - mu if CENTER else h
        x_hat, _, _, g = _gradient_before_affine(
            dy, deviation, rstd, weight, bias, WEIGHT_SHIFT, ACTIVATION, ROUND_TO, COMPUTE
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
        dy = tl.load(dy_ptr + dy_row + cols, mask=ok, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + row)
        mu = tl.load(mu_ptr + row) if CENTER else tl.zeros_like(rstd)
        slots = parts_ptr + row * n_parts + parts
        a = tl.sum(tl.load(slots, mask=part_ok, other=0.0), axis=1, keep_dims=True) / n

        deviation = h - mu if CENTER else h
        x_hat, seen, dz, g = _gradient_before_affine(
            dy, deviation, rstd, weight, bias, WEIGHT_SHIFT, ACTIVATION, ROUND_TO, COMPUTE
        )
        dx = g - x_hat * a
        if CENTER:
            sum_g = tl.load(slots + sums_of_g, mask=part_ok, other=0.0)
            dx -= tl.sum(sum_g, axis=1, keep_dims=True) / n
        dx *= rstd
        if dh_ptr is not None:
            dh_row = row * dh_row_stride * ALIGN
            dx += tl.load(dh_ptr + dh_row + cols, mask=ok, other=0.0).to(COMPUTE)

        out = row * n_cols + cols
        if dx_ptr is not None:
            tl.store(dx_ptr + out, dx.to(dx_ptr.dtype.element_ty), mask=ok)
        if dresidual_ptr is not None:
            tl.store(dresidual_ptr + out, dx.to(dresidual_ptr.dtype.element_ty), mask=ok)
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


@triton.jit(do_not_specialize=["n_partials", "n_cols"])
def column_sums(
    dpre_bias_partial_ptr,
    dweight_partial_ptr,
    dbias_partial_ptr,
    dpre_bias_ptr,
    dweight_ptr,
    dbias_ptr,
    n_partials,
    n_cols,
    ALIGN: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    n_cols = n_cols * ALIGN
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    if dpre_bias_ptr is not None:
        _sum_rows(
            dpre_bias_partial_ptr, dpre_bias_ptr, cols, n_partials, n_cols, COMPUTE, BLOCK_ROWS
        )
    if dweight_ptr is not None:
        _sum_rows(dweight_partial_ptr, dweight_ptr, cols, n_partials, n_cols, COMPUTE, BLOCK_ROWS)
    if dbias_ptr is not None:
        _sum_rows(dbias_partial_ptr, dbias_ptr, cols, n_partials, n_cols, COMPUTE, BLOCK_ROWS)


@triton.jit
def _sum_rows(
    partial_ptr,
    out_ptr,
    cols,
    n_partials,
    n_cols,
    COMPUTE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """out[cols] = sum over rows of partial[rows, cols], the same order every time."""
    ok = cols < n_cols
    total = tl.zeros((BLOCK_ROWS, cols.shape[1]), COMPUTE)
    for start in range(0, n_partials, BLOCK_ROWS):
        rows = start + tl.arange(0, BLOCK_ROWS)[:, None]
        total += tl.load(
            partial_ptr + rows.to(tl.int64) * n_cols + cols,
            mask=(rows < n_partials) & ok,
            other=0.0,
        )
    out = tl.sum(total, axis=0, keep_dims=True)
    tl.store(out_ptr + cols, out.to(out_ptr.dtype.element_ty), mask=ok)
