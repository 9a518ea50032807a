"""Forward kernels for rows that no program holds: what is read for the statistics is read again, from cache.

    forward_looped   one row in one program, in chunks: statistics, then the row again
    forward_moments  the statistics of one part of a row (regime split, first half)
    forward_apply    merges the parts in a fixed order, normalizes its own part (regime split, second half)

Conventions as in ``forward``.
"""

import triton
import triton.language as tl

from .activations import activate, is_precise
from .arithmetic import (
    affine,
    all_of,
    in_range,
    inverse_sqrt,
    is_centered,
    load_columns,
    load_h,
    moments_about,
    normalize,
    refined_mean,
    rounded,
    sum_both,
    x_hat_of,
)


@triton.jit
def _load_chunk(
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    x_row,
    residual_row,
    cols,
    ok,
    COMPUTE: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Columns ``cols`` of h, in one row."""
    pre_bias = load_columns(pre_bias_ptr, cols, ok) if pre_bias_ptr is not None else None
    return load_h(x_ptr, residual_ptr, pre_bias, x_row, residual_row, cols, ok, COMPUTE, CACHE)


@triton.jit
def _scan_sums(
    origin,
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    x_row,
    residual_row,
    first_col,
    end_col,
    CENTER: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    """The sums of ``h - origin``, if centred, and of its squares over columns first_col to end_col; of h rounded to
    ROUND_TO, if one is named.
    """
    lanes = tl.arange(0, BLOCK_COLS)[None, :]
    total = tl.zeros((1, BLOCK_COLS), COMPUTE)
    squares = tl.zeros((1, BLOCK_COLS), COMPUTE)
    for start in range(first_col, end_col, BLOCK_COLS):
        cols = start + lanes
        ok = in_range(cols, end_col, EVEN_COLS)
        h = _load_chunk(
            x_ptr, residual_ptr, pre_bias_ptr, x_row, residual_row, cols, ok, COMPUTE, "evict_last"
        )
        h = rounded(h, ROUND_TO, COMPUTE)
        if origin is not None:
            h = tl.where(ok, h - origin, 0.0)
        squares += h * h
        if CENTER:
            total += h
    if CENTER:
        return sum_both(total, squares)
    else:
        return tl.zeros((1, 1), COMPUTE), tl.sum(squares, axis=1, keep_dims=True)


@triton.jit
def _scan_moments(
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    x_row,
    residual_row,
    first_col,
    end_col,
    CENTER: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    """(mean, sum of squared deviations) of columns first_col to end_col; (0, sum of squares) uncentred.

    One pass, and another for columns that need it. That one takes deviations from ``origin``, the mean of the first
    chunk. It can be far from the mean of the whole only where chunks differ, and then the variance is large too: with k
    chunks at most k times as many rounding errors as a third pass would make, whatever the data.
    """
    total, squares = _scan_sums(
        None,
        x_ptr,
        residual_ptr,
        pre_bias_ptr,
        x_row,
        residual_row,
        first_col,
        end_col,
        CENTER,
        None,
        COMPUTE,
        BLOCK_COLS,
        EVEN_COLS,
    )
    if CENTER:
        n = tl.cast(end_col - first_col, COMPUTE)
        mean, variation = moments_about(tl.zeros((1, 1), COMPUTE), total, squares, n)
        if not all_of(is_centered(total, squares, n)):
            cols = first_col + tl.arange(0, BLOCK_COLS)[None, :]
            ok = in_range(cols, end_col, EVEN_COLS)
            first = _load_chunk(
                x_ptr, residual_ptr, pre_bias_ptr, x_row, residual_row, cols, ok, COMPUTE, ""
            )
            n_first = tl.cast(tl.minimum(end_col - first_col, BLOCK_COLS), COMPUTE)
            origin = refined_mean(first, ok, n_first)
            total, squares = _scan_sums(
                origin,
                x_ptr,
                residual_ptr,
                pre_bias_ptr,
                x_row,
                residual_row,
                first_col,
                end_col,
                CENTER,
                None,
                COMPUTE,
                BLOCK_COLS,
                EVEN_COLS,
            )
            mean, variation = moments_about(origin, total, squares, n)
        return mean, variation
    else:
        return total, squares


@triton.jit
def _kept_moments(
    mean,
    variation,
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    x_row,
    residual_row,
    first_col,
    end_col,
    KEPT_AS: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    """(mean, sum of squared deviations) of columns first_col to end_col once they are rounded to KEPT_AS.

    Given those of the columns themselves. As ``arithmetic.kept_moments``: another pass for columns that need it.
    """
    n = tl.cast(end_col - first_col, COMPUTE)
    if not all_of(mean * mean * n <= variation):
        origin = rounded(mean, KEPT_AS, COMPUTE)
        total, squares = _scan_sums(
            origin,
            x_ptr,
            residual_ptr,
            pre_bias_ptr,
            x_row,
            residual_row,
            first_col,
            end_col,
            True,
            KEPT_AS,
            COMPUTE,
            BLOCK_COLS,
            EVEN_COLS,
        )
        mean, variation = moments_about(origin, total, squares, n)
    return mean, variation


@triton.jit
def apply_range(
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    h_ptr,
    x_row,
    residual_row,
    out_row,
    first_col,
    end_col,
    mu,
    rstd,
    CENTER: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    """Normalize columns first_col to end_col, last chunk first: what was read last is still in cache."""
    lanes = tl.arange(0, BLOCK_COLS)[None, :]
    n_chunks = tl.cdiv(end_col - first_col, BLOCK_COLS)
    for chunk in range(0, n_chunks):
        cols = first_col + (n_chunks - 1 - chunk) * BLOCK_COLS + lanes
        ok = in_range(cols, end_col, EVEN_COLS)
        h = _load_chunk(
            x_ptr, residual_ptr, pre_bias_ptr, x_row, residual_row, cols, ok, COMPUTE, "evict_first"
        )
        if h_ptr is not None:
            tl.store(h_ptr + out_row + cols, h.to(h_ptr.dtype.element_ty), mask=ok)
        weight = load_columns(weight_ptr, cols, ok) if weight_ptr is not None else None
        bias = load_columns(bias_ptr, cols, ok) if bias_ptr is not None else None
        if CENTER and ACTIVATION is not None:
            # An activation takes so many instructions that one less counts.
            (own,) = x_hat_of((h,), mu, rstd, (ok,), CENTER, 1)
            x_hat = rounded(own, ROUND_TO, COMPUTE)
        else:
            deviation = h - mu if CENTER else h
            x_hat = normalize(deviation, rstd, ROUND_TO, COMPUTE)
        z = affine(x_hat, weight, bias, WEIGHT_SHIFT, COMPUTE)
        y = activate(z, ACTIVATION, is_precise(y_ptr))
        tl.store(y_ptr + out_row + cols, y.to(y_ptr.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["x_row_stride", "residual_row_stride", "n_rows", "n_cols"])
def forward_looped(
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    h_ptr,
    mu_ptr,
    rstd_ptr,
    x_row_stride,
    residual_row_stride,
    n_rows,
    n_cols,
    ALIGN: tl.constexpr,
    CENTER: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    KEPT_AS: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,  # that a row fills; 0: not known. If it is, they are loaded at once
):
    n_cols = CHUNKS * BLOCK_COLS if CHUNKS else n_cols * ALIGN
    row = tl.program_id(0).to(tl.int64)
    x_row = row * x_row_stride * ALIGN
    residual_row = row * residual_row_stride * ALIGN

    mu, square = _scan_moments(
        x_ptr,
        residual_ptr,
        pre_bias_ptr,
        x_row,
        residual_row,
        0,
        n_cols,
        CENTER,
        COMPUTE,
        BLOCK_COLS,
        EVEN_COLS,
    )
    n = tl.cast(n_cols, COMPUTE)
    rstd = inverse_sqrt(square / n, EPS, COMPUTE)
    kept_mu = mu
    kept_rstd = rstd
    if KEPT_AS is not None and mu_ptr is not None:
        kept_mu, square = _kept_moments(
            mu,
            square,
            x_ptr,
            residual_ptr,
            pre_bias_ptr,
            x_row,
            residual_row,
            0,
            n_cols,
            KEPT_AS,
            COMPUTE,
            BLOCK_COLS,
            EVEN_COLS,
        )
        kept_rstd = inverse_sqrt(square / n, EPS, COMPUTE)
    if mu_ptr is not None:
        tl.store(mu_ptr + row + tl.zeros((1, 1), tl.int64), kept_mu)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row + tl.zeros((1, 1), tl.int64), kept_rstd)
    apply_range(
        x_ptr,
        residual_ptr,
        pre_bias_ptr,
        weight_ptr,
        bias_ptr,
        y_ptr,
        h_ptr,
        x_row,
        residual_row,
        row * n_cols,
        0,
        n_cols,
        mu,
        rstd,
        CENTER,
        WEIGHT_SHIFT,
        ACTIVATION,
        ROUND_TO,
        COMPUTE,
        BLOCK_COLS,
        EVEN_COLS,
    )


@triton.jit(
    do_not_specialize=[
        "x_row_stride",
        "residual_row_stride",
        "n_rows",
        "n_cols",
        "n_parts",
        "part_blocks",
    ]
)
def forward_moments(
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    parts_ptr,  # (2, n_rows, n_parts): means, then sums of squared deviations
    kept_parts_ptr,  # the same of h as it is stored, or None
    x_row_stride,
    residual_row_stride,
    n_rows,
    n_cols,
    n_parts,
    part_blocks,
    ALIGN: tl.constexpr,
    CENTER: tl.constexpr,
    KEPT_AS: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    pid = tl.program_id(0).to(tl.int64)
    row = pid // n_parts
    first_col = (pid % n_parts).to(tl.int32) * part_blocks * BLOCK_COLS
    end_col = tl.minimum(first_col + part_blocks * BLOCK_COLS, n_cols * ALIGN)
    mean, square = _scan_moments(
        x_ptr,
        residual_ptr,
        pre_bias_ptr,
        row * x_row_stride * ALIGN,
        row * residual_row_stride * ALIGN,
        first_col,
        end_col,
        CENTER,
        COMPUTE,
        BLOCK_COLS,
        EVEN_COLS,
    )
    slot = pid + tl.zeros((1, 1), tl.int64)
    n_squares = tl.cast(n_rows, tl.int64) * n_parts
    tl.store(parts_ptr + slot, mean)
    tl.store(parts_ptr + slot + n_squares, square)
    if kept_parts_ptr is not None:
        mean, square = _kept_moments(
            mean,
            square,
            x_ptr,
            residual_ptr,
            pre_bias_ptr,
            row * x_row_stride * ALIGN,
            row * residual_row_stride * ALIGN,
            first_col,
            end_col,
            KEPT_AS,
            COMPUTE,
            BLOCK_COLS,
            EVEN_COLS,
        )
        tl.store(kept_parts_ptr + slot, mean)
        tl.store(kept_parts_ptr + slot + n_squares, square)


@triton.jit
def _merged(
    parts_ptr,
    row,
    n_rows,
    n_cols,
    n_parts,
    part_cols,
    CENTER: tl.constexpr,
    EPS: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    """(mu, rstd) of a row, from the moments of its parts."""
    parts = tl.arange(0, BLOCK_PARTS)[None, :]
    part_ok = parts < n_parts
    slots = parts_ptr + row * n_parts + parts
    n_squares = tl.cast(n_rows, tl.int64) * n_parts
    square = tl.load(slots + n_squares, mask=part_ok, other=0.0)
    n = tl.cast(n_cols, COMPUTE)
    if CENTER:
        mean = tl.load(slots, mask=part_ok, other=0.0)
        count = tl.where(part_ok, tl.minimum(part_cols, n_cols - parts * part_cols), 0).to(COMPUTE)
        origin = tl.load(parts_ptr + row * n_parts + tl.zeros((1, 1), tl.int64))
        shift = tl.where(part_ok, mean - origin, 0.0)
        drift = tl.sum(shift * count, axis=1, keep_dims=True) / n
        square += count * (shift - drift) * (shift - drift)
        mu = origin + drift
    else:
        mu = tl.zeros((1, 1), COMPUTE)
    return mu, inverse_sqrt(tl.sum(square, axis=1, keep_dims=True) / n, EPS, COMPUTE)


@triton.jit(
    do_not_specialize=[
        "x_row_stride",
        "residual_row_stride",
        "n_rows",
        "n_cols",
        "n_parts",
        "part_blocks",
    ]
)
def forward_apply(
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    h_ptr,
    mu_ptr,
    rstd_ptr,
    parts_ptr,
    kept_parts_ptr,
    x_row_stride,
    residual_row_stride,
    n_rows,
    n_cols,
    n_parts,
    part_blocks,
    ALIGN: tl.constexpr,
    CENTER: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    n_cols = n_cols * ALIGN
    pid = tl.program_id(0).to(tl.int64)
    row = pid // n_parts
    part = (pid % n_parts).to(tl.int32)
    part_cols = part_blocks * BLOCK_COLS
    first_col = part * part_cols
    end_col = tl.minimum(first_col + part_cols, n_cols)

    mu, rstd = _merged(
        parts_ptr, row, n_rows, n_cols, n_parts, part_cols, CENTER, EPS, COMPUTE, BLOCK_PARTS
    )
    kept_mu = mu
    kept_rstd = rstd
    if kept_parts_ptr is not None:
        kept_mu, kept_rstd = _merged(
            kept_parts_ptr,
            row,
            n_rows,
            n_cols,
            n_parts,
            part_cols,
            CENTER,
            EPS,
            COMPUTE,
            BLOCK_PARTS,
        )
    if mu_ptr is not None:
        tl.store(mu_ptr + row + tl.zeros((1, 1), tl.int64), kept_mu, mask=part == 0)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row + tl.zeros((1, 1), tl.int64), kept_rstd, mask=part == 0)
    apply_range(
        x_ptr,
        residual_ptr,
        pre_bias_ptr,
        weight_ptr,
        bias_ptr,
        y_ptr,
        h_ptr,
        row * x_row_stride * ALIGN,
        row * residual_row_stride * ALIGN,
        row * n_cols,
        first_col,
        end_col,
        mu,
        rstd,
        CENTER,
        WEIGHT_SHIFT,
        ACTIVATION,
        ROUND_TO,
        COMPUTE,
        BLOCK_COLS,
        EVEN_COLS,
    )
