"""Some columns of one row, read in chunks: their moments, and what becomes of them. For rows that are read again.

Conventions as in ``forward``.
"""

import triton
import triton.language as tl

from .activations import activate, is_precise
from .arithmetic import (
    affine,
    all_of,
    in_range,
    load_columns,
    load_h,
    moments_about,
    moments_about_zero,
    normalize,
    refined_mean,
    rounded,
    store_row,
    sum_both,
    sums_of_neighbours,
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
def _range_sums(
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
def sums_about(
    origin,
    factor,
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    x_row,
    residual_row,
    first_col,
    end_col,
    ROUND_TO: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The sums of ``(h - origin) * factor`` and of the squares of ``h - origin``, in fp32; of h rounded to ROUND_TO, if
    one is named.

    For a program that holds these columns and needs this rarely: it must not take registers from what always is.
    """
    total = tl.zeros((1, BLOCK_COLS // GROUP), tl.float32)
    squares = tl.zeros((1, BLOCK_COLS // GROUP), tl.float32)
    for start in range(first_col, end_col, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)[None, :]
        ok = cols < end_col
        h = _load_chunk(
            x_ptr, residual_ptr, pre_bias_ptr, x_row, residual_row, cols, ok, tl.float32, ""
        )
        deviation = tl.where(ok, rounded(h, ROUND_TO, tl.float32) - origin, 0.0)
        total += sums_of_neighbours(deviation * factor, GROUP)
        squares += sums_of_neighbours(deviation * deviation, GROUP)
    total, squares = sum_both(total, squares)
    return tl.sum(total), tl.sum(squares)


@triton.jit
def range_moments(
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
    total, squares = _range_sums(
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
        mean, variation, centered = moments_about_zero(total, squares, n)
        if not all_of(centered):
            cols = first_col + tl.arange(0, BLOCK_COLS)[None, :]
            ok = in_range(cols, end_col, EVEN_COLS)
            first = _load_chunk(
                x_ptr, residual_ptr, pre_bias_ptr, x_row, residual_row, cols, ok, COMPUTE, ""
            )
            n_first = tl.cast(tl.minimum(end_col - first_col, BLOCK_COLS), COMPUTE)
            origin = refined_mean(first, ok, n_first)
            total, squares = _range_sums(
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
def kept_range_moments(
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
        total, squares = _range_sums(
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
    LEAVES: tl.constexpr,
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
            store_row(h_ptr + out_row + cols, h, ok, LEAVES)
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
        store_row(y_ptr + out_row + cols, y, ok, LEAVES)
