"""The forward kernel whose programs hold whole rows (regimes tile and resident): one load, one store.

The equations are in ``arithmetic``.
Strides and sizes arrive divided by ALIGN, the largest power of two that divides all of them: multiplying
it back in is what shows the compiler that 16-byte accesses are safe.
Values are rounded at their stores and nowhere else, except ``x_hat`` where ROUND_TO names a dtype.
"""

import triton
import triton.language as tl

from .activations import activate, is_precise
from .arithmetic import (
    affine,
    all_of,
    fused_x_hat,
    in_range,
    is_near,
    kept_moments,
    load_chunks,
    load_columns,
    load_h,
    moments,
    rounded,
    store_row,
)


@triton.jit
def _apply(
    h,
    mu,
    rstd,
    weights,
    biases,
    weight_ptr,
    bias_ptr,
    y_ptr,
    out_row,
    ok,
    lanes,
    n_cols,
    CENTER: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    EARLY: tl.constexpr,
    LEAVES: tl.constexpr,
    FUSES: tl.constexpr,  # x_hat of rows that are near 0
    ALL_NEAR: tl.constexpr,
):
    """Write ``y``, of rows whose statistics are known."""
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        col_ok = in_range(cols, n_cols, EVEN_COLS or c < CHUNKS - 1)
        if ALL_NEAR:
            x_hat = fused_x_hat(h[c], mu, rstd)
        else:
            x_hat = (h[c] - mu if CENTER else h[c]) * rstd
            if FUSES:
                x_hat = tl.where(is_near(mu, rstd), fused_x_hat(h[c], mu, rstd), x_hat)
        # Loaded only now: until the statistics are known they would take registers from the rows in flight.
        if EARLY:
            weight = weights[c] if weight_ptr is not None else None
            bias = biases[c] if bias_ptr is not None else None
        else:
            weight = load_columns(weight_ptr, cols, col_ok) if weight_ptr is not None else None
            bias = load_columns(bias_ptr, cols, col_ok) if bias_ptr is not None else None
        z = affine(rounded(x_hat, ROUND_TO, COMPUTE), weight, bias, WEIGHT_SHIFT, COMPUTE)
        y = activate(z, ACTIVATION, is_precise(y_ptr))
        store_row(y_ptr + out_row + cols, y, ok[c], LEAVES)


@triton.jit(do_not_specialize=["x_row_stride", "residual_row_stride", "n_rows", "n_cols"])
def forward_tile(
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
    KEPT_AS: tl.constexpr,  # the dtype of h, where rounding to it moves the statistics
    COMPUTE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    EARLY: tl.constexpr,
    LEAVES: tl.constexpr,  # results do, as in store_row
    SHORT: tl.constexpr,  # rstd is, as in inverse_deviation
):
    n_cols = n_cols * ALIGN
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    row_ok = in_range(rows, n_rows, BLOCK_ROWS == 1)
    lanes = tl.arange(0, BLOCK_COLS)[None, :]
    x_row = rows * x_row_stride * ALIGN
    residual_row = rows * residual_row_stride * ALIGN
    out_row = rows * n_cols

    h = ()
    inside = ()
    ok = ()
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        col_ok = in_range(cols, n_cols, EVEN_COLS or c < CHUNKS - 1)
        inside = inside + (col_ok,)
        ok = ok + (row_ok & col_ok,)
        pre_bias = load_columns(pre_bias_ptr, cols, col_ok) if pre_bias_ptr is not None else None
        h = h + (
            load_h(
                x_ptr,
                residual_ptr,
                pre_bias,
                x_row,
                residual_row,
                cols,
                ok[c],
                COMPUTE,
                "evict_last",
            ),
        )
    weights = ()
    biases = ()
    if EARLY:
        FULL: tl.constexpr = CHUNKS if EVEN_COLS else CHUNKS - 1
        weights = load_chunks(weight_ptr, 0, CHUNKS, lanes, n_cols, BLOCK_COLS, FULL)
        biases = load_chunks(bias_ptr, 0, CHUNKS, lanes, n_cols, BLOCK_COLS, FULL)
    if h_ptr is not None:  # After all loads: a store holds up every load after it.
        for c in tl.static_range(CHUNKS):
            cols = c * BLOCK_COLS + lanes
            store_row(h_ptr + out_row + cols, h[c], ok[c], LEAVES)
    mu, rstd = moments(h, inside, n_cols, CENTER, EPS, COMPUTE, CHUNKS, SHORT)
    kept_mu = mu
    kept_rstd = rstd
    if KEPT_AS is not None and mu_ptr is not None:
        kept_mu, kept_rstd = kept_moments(
            h, inside, mu, rstd, n_cols, EPS, COMPUTE, CHUNKS, KEPT_AS, SHORT
        )

    # An activation takes so many instructions that one less counts.
    FUSES: tl.constexpr = CENTER and ACTIVATION is not None
    if all_of(is_near(mu, rstd)) if FUSES else False:
        _apply(
            h,
            mu,
            rstd,
            weights,
            biases,
            weight_ptr,
            bias_ptr,
            y_ptr,
            out_row,
            ok,
            lanes,
            n_cols,
            CENTER,
            WEIGHT_SHIFT,
            ACTIVATION,
            ROUND_TO,
            COMPUTE,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
            EARLY,
            LEAVES,
            FUSES,
            True,
        )
    else:
        _apply(
            h,
            mu,
            rstd,
            weights,
            biases,
            weight_ptr,
            bias_ptr,
            y_ptr,
            out_row,
            ok,
            lanes,
            n_cols,
            CENTER,
            WEIGHT_SHIFT,
            ACTIVATION,
            ROUND_TO,
            COMPUTE,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
            EARLY,
            LEAVES,
            FUSES,
            False,
        )
    if mu_ptr is not None:
        tl.store(mu_ptr + rows, kept_mu, mask=row_ok)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + rows, kept_rstd, mask=row_ok)
