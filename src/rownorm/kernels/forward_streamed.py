"""Forward kernels for rows that no program holds: what is read for the statistics is read again, from cache.

    forward_looped   one row in one program, in chunks: statistics, then the row again
    forward_moments  the statistics of one part of a row (regime split, first half)
    forward_apply    merges the parts in a fixed order, normalizes its own part (regime split, second half)

Conventions as in ``forward``.
"""

import triton
import triton.language as tl

from .arithmetic import inverse_deviation
from .ranges import apply_range, kept_range_moments, range_moments


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
    LEAVES: tl.constexpr,
):
    n_cols = CHUNKS * BLOCK_COLS if CHUNKS else n_cols * ALIGN
    row = tl.program_id(0).to(tl.int64)
    x_row = row * x_row_stride * ALIGN
    residual_row = row * residual_row_stride * ALIGN

    mu, square = range_moments(
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
    rstd = inverse_deviation(square, n, EPS, COMPUTE)
    kept_mu = mu
    kept_rstd = rstd
    if KEPT_AS is not None and mu_ptr is not None:
        kept_mu, square = kept_range_moments(
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
        kept_rstd = inverse_deviation(square, n, EPS, COMPUTE)
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
        LEAVES,
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
    mean, square = range_moments(
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
        mean, square = kept_range_moments(
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
    return mu, inverse_deviation(tl.sum(square, axis=1, keep_dims=True), n, EPS, COMPUTE)


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
    LEAVES: tl.constexpr,
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
        LEAVES,
    )
