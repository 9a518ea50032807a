"""The forward kernel for rows that several programs hold together: one load, one store (regime cluster).

CLUSTER programs share a row, each with its part of the columns. With AHEAD they go from row to row, and the next one is
on its way while this one is worked on; without, there are as many clusters as rows, and other programs on the same SM
fill the pauses: the more of them, the fewer registers each has. So 16-bit numbers wait in words of two (``packed``),
and where one pass will not do for a centred row, what is done instead reads it again and has exchanges of its own.

Conventions as in ``forward``.
"""

import triton
import triton.language as tl

from .activations import activate, is_precise
from .arithmetic import (
    affine,
    in_range,
    inverse_deviation,
    load_chunks,
    load_columns,
    moments_about,
    moments_about_zero,
    normalize,
    rounded,
    store_row,
    sum_both,
    sums_of_neighbours,
    widened,
)
from .cluster import open_mailbox, received_sums, send, wait_for_cluster
from .packing import packed, unpacked
from .ranges import apply_range, sums_about
from .target import reciprocal


@triton.jit
def _load_row(
    ptr,
    row,
    lanes,
    n_cols,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    PACK: tl.constexpr,
    CACHE: tl.constexpr,
):
    """This program's columns of a row, as they lie in memory."""
    chunks = ()
    if ptr is not None:
        for c in tl.static_range(CHUNKS):
            cols = c * BLOCK_COLS + lanes
            ok = in_range(cols, n_cols, EVEN_COLS)
            chunk = tl.load(ptr + row + cols, mask=ok, other=0.0, eviction_policy=CACHE)
            chunks = chunks + (packed(chunk, PACK),)
    return chunks


@triton.jit
def _h(
    x,
    residual,
    c,
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    cols,
    ok,
    PACK_X: tl.constexpr,
    PACK_RESIDUAL: tl.constexpr,
):
    """``x [+ pre_bias] [+ residual]`` of chunk ``c``, from what is held of it."""
    h = unpacked(x[c], x_ptr.dtype.element_ty, PACK_X)
    if pre_bias_ptr is not None:
        h += widened(load_columns(pre_bias_ptr, cols, ok), tl.float32)
    if residual_ptr is not None:
        h += unpacked(residual[c], residual_ptr.dtype.element_ty, PACK_RESIDUAL)
    return h


@triton.jit
def _sums(
    x,
    residual,
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    h_ptr,
    out_row,
    lanes,
    n_cols,
    CENTER: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    PACK_X: tl.constexpr,
    PACK_RESIDUAL: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The sums of h, if centred, and of its squares over this program's columns. Stores h if there is a pointer."""
    total = tl.zeros((1, BLOCK_COLS // GROUP), tl.float32)
    squares = tl.zeros((1, BLOCK_COLS // GROUP), tl.float32)
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        ok = in_range(cols, n_cols, EVEN_COLS)
        h = _h(x, residual, c, x_ptr, residual_ptr, pre_bias_ptr, cols, ok, PACK_X, PACK_RESIDUAL)
        if h_ptr is not None:
            store_row(h_ptr + out_row + cols, h, ok)
        squares += sums_of_neighbours(h * h, GROUP)
        if CENTER:
            total += sums_of_neighbours(h, GROUP)
    if CENTER:
        total, squares = sum_both(total, squares)
        return tl.sum(total), tl.sum(squares)
    else:
        return 0.0, tl.sum(squares)


@triton.jit
def _finish(
    x,
    residual,
    weight,
    bias,
    mu,
    rstd,
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    out_row,
    lanes,
    n_cols,
    CENTER: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    HELD: tl.constexpr,
    FULL: tl.constexpr,
    PACK_X: tl.constexpr,
    PACK_RESIDUAL: tl.constexpr,
    LEAVES: tl.constexpr,
):
    """Store y. ``weight`` and ``bias`` are those of the first HELD chunks. Of all chunks, the first FULL are full.

    ``x_hat`` in one step: where a row varies more than it is off from 0, that is as exact as two.
    """
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        ok = in_range(cols, n_cols, c < FULL)
        h = _h(x, residual, c, x_ptr, residual_ptr, pre_bias_ptr, cols, ok, PACK_X, PACK_RESIDUAL)
        own_weight = weight[c] if weight_ptr is not None else None
        own_bias = bias[c] if bias_ptr is not None else None
        if HELD <= c + 1 and c + 1 < CHUNKS:
            # Before y is stored: a store holds up every load after it, which might be of the same memory.
            weight = weight + load_chunks(weight_ptr, c + 1, c + 2, lanes, n_cols, BLOCK_COLS, FULL)
            bias = bias + load_chunks(bias_ptr, c + 1, c + 2, lanes, n_cols, BLOCK_COLS, FULL)
        if CENTER:
            x_hat = rounded(tl.fma(h, rstd, -mu * rstd), ROUND_TO, tl.float32)
        else:
            x_hat = normalize(h, rstd, ROUND_TO, tl.float32)
        z = affine(x_hat, own_weight, own_bias, WEIGHT_SHIFT, tl.float32)
        y = activate(z, ACTIVATION, is_precise(y_ptr))
        store_row(y_ptr + out_row + cols, y, ok, LEAVES)


@triton.jit
def _row_sums(mailbox, exchange, total, squares, CLUSTER: tl.constexpr):
    """The sums over a row, from those of its programs."""
    if CLUSTER > 1:
        send(mailbox, total, squares, exchange)
        return received_sums(mailbox, exchange, CLUSTER)
    else:
        return total, squares


@triton.jit(do_not_specialize=["x_row_stride", "residual_row_stride", "n_rows", "n_cols"])
def forward_cluster(
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
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    CLUSTER: tl.constexpr,
    AHEAD: tl.constexpr,
    LEAVES: tl.constexpr,
    SHORT: tl.constexpr,
    NUM_WARPS: tl.constexpr,
    PACK_X: tl.constexpr,
    PACK_RESIDUAL: tl.constexpr,
):
    # What a thread has side by side: 16 bytes of x, or all it has.
    GROUP: tl.constexpr = max(
        1, min(128 // x_ptr.dtype.element_ty.primitive_bitwidth, BLOCK_COLS // (32 * NUM_WARPS))
    )
    COLS: tl.constexpr = CHUNKS * BLOCK_COLS
    FULL: tl.constexpr = CHUNKS if EVEN_COLS else 0
    # Two parameters for every row are twice the row, which is more than L2 delivers. So the first chunks of them stay,
    # 8 numbers of each for a thread, where nothing else wants the registers.
    PLAIN: tl.constexpr = residual_ptr is None and pre_bias_ptr is None and ACTIVATION is None
    HOLDS: tl.constexpr = AHEAD and PLAIN and weight_ptr is not None and bias_ptr is not None
    FITTING: tl.constexpr = max(1, 8 * 32 * NUM_WARPS // BLOCK_COLS)
    HELD: tl.constexpr = min(CHUNKS, FITTING) if HOLDS else 1
    # Not where rows of two kinds are loaded ahead: with hints, LayerNorm of 131072 columns is a sixth slower.
    CACHE: tl.constexpr = "evict_last" if residual_ptr is None or not AHEAD else ""
    n_cols = n_cols * ALIGN
    n = tl.cast(n_cols, tl.float32)
    mailbox = open_mailbox() if CLUSTER > 1 else 0
    rank = tl.program_id(0) % CLUSTER
    step = tl.num_programs(0) // CLUSTER
    row = tl.cast(tl.program_id(0) // CLUSTER, tl.int64)
    first_col = rank * COLS
    end_col = tl.minimum(first_col + COLS, n_cols)
    lanes = first_col + tl.arange(0, BLOCK_COLS)[None, :]
    x_stride = tl.cast(x_row_stride, tl.int64) * ALIGN
    residual_stride = tl.cast(residual_row_stride, tl.int64) * ALIGN
    n_turns = tl.cast(tl.cdiv(n_rows - row, step), tl.int32)  # in 64 bits, since cdiv adds first

    next_x = ()
    next_residual = ()
    if AHEAD:
        load_row = tl.minimum(row, n_rows - 1)  # beyond the last one, any row will do
        next_x = _load_row(
            x_ptr, load_row * x_stride, lanes, n_cols, BLOCK_COLS, CHUNKS, EVEN_COLS, PACK_X, CACHE
        )
        next_residual = _load_row(
            residual_ptr,
            load_row * residual_stride,
            lanes,
            n_cols,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
            PACK_RESIDUAL,
            CACHE,
        )
    if HOLDS:
        weight = load_chunks(weight_ptr, 0, HELD, lanes, n_cols, BLOCK_COLS, FULL)
        bias = load_chunks(bias_ptr, 0, HELD, lanes, n_cols, BLOCK_COLS, FULL)
    if CLUSTER > 1:
        wait_for_cluster()
    exchange = 0  # counted for the mailbox
    for _ in range(0, n_turns if AHEAD else 1):
        x = next_x
        residual = next_residual
        load_row = tl.minimum(row + step, n_rows - 1) if AHEAD else row
        loaded_x = _load_row(
            x_ptr, load_row * x_stride, lanes, n_cols, BLOCK_COLS, CHUNKS, EVEN_COLS, PACK_X, CACHE
        )
        loaded_residual = _load_row(
            residual_ptr,
            load_row * residual_stride,
            lanes,
            n_cols,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
            PACK_RESIDUAL,
            CACHE,
        )
        if AHEAD:
            next_x = loaded_x
            next_residual = loaded_residual
        else:
            x = loaded_x
            residual = loaded_residual

        total, squares = _sums(
            x,
            residual,
            x_ptr,
            residual_ptr,
            pre_bias_ptr,
            h_ptr,
            row * n_cols,
            lanes,
            n_cols,
            CENTER,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
            PACK_X,
            PACK_RESIDUAL,
            GROUP,
        )
        if not HOLDS:
            weight = load_chunks(weight_ptr, 0, HELD, lanes, n_cols, BLOCK_COLS, FULL)
            bias = load_chunks(bias_ptr, 0, HELD, lanes, n_cols, BLOCK_COLS, FULL)
        total, squares = _row_sums(mailbox, exchange, total, squares, CLUSTER)
        exchange += 1
        mu = 0.0
        if CENTER:
            mu, squares, centered = moments_about_zero(total, squares, n)
        rstd = inverse_deviation(squares, n, EPS, tl.float32, SHORT)
        kept_mu = mu
        kept_rstd = rstd
        if CENTER and not centered:
            # The mean, as a sum of shares, which cannot overflow; then deviations from it.
            for again in range(0, 2):
                origin = tl.where(again == 0, 0.0, mu)
                total, squares = sums_about(
                    origin,
                    tl.where(again == 0, reciprocal(n), 1.0),
                    x_ptr,
                    residual_ptr,
                    pre_bias_ptr,
                    row * x_stride,
                    row * residual_stride,
                    first_col,
                    end_col,
                    None,
                    BLOCK_COLS,
                    GROUP,
                )
                total, squares = _row_sums(mailbox, exchange, total, squares, CLUSTER)
                exchange += 1
                mu, squares = moments_about(origin, total, squares, tl.where(again == 0, 1.0, n))
            rstd = inverse_deviation(squares, n, EPS, tl.float32, SHORT)
            kept_mu = mu
            kept_rstd = rstd
            if KEPT_AS is not None and mu_ptr is not None:
                origin = rounded(mu, KEPT_AS, tl.float32)
                total, squares = sums_about(
                    origin,
                    1.0,
                    x_ptr,
                    residual_ptr,
                    pre_bias_ptr,
                    row * x_stride,
                    row * residual_stride,
                    first_col,
                    end_col,
                    KEPT_AS,
                    BLOCK_COLS,
                    GROUP,
                )
                total, squares = _row_sums(mailbox, exchange, total, squares, CLUSTER)
                exchange += 1
                kept_mu, squares = moments_about(origin, total, squares, n)
                kept_rstd = inverse_deviation(squares, n, EPS, tl.float32, SHORT)
            apply_range(
                x_ptr,
                residual_ptr,
                pre_bias_ptr,
                weight_ptr,
                bias_ptr,
                y_ptr,
                None,
                row * x_stride,
                row * residual_stride,
                row * n_cols,
                first_col,
                end_col,
                tl.full((1, 1), mu, tl.float32),
                tl.full((1, 1), rstd, tl.float32),
                CENTER,
                WEIGHT_SHIFT,
                ACTIVATION,
                ROUND_TO,
                tl.float32,
                BLOCK_COLS,
                False,
                True,
            )
        else:
            _finish(
                x,
                residual,
                weight,
                bias,
                mu,
                rstd,
                x_ptr,
                residual_ptr,
                pre_bias_ptr,
                weight_ptr,
                bias_ptr,
                y_ptr,
                row * n_cols,
                lanes,
                n_cols,
                CENTER,
                WEIGHT_SHIFT,
                ACTIVATION,
                ROUND_TO,
                BLOCK_COLS,
                CHUNKS,
                HELD,
                FULL,
                PACK_X,
                PACK_RESIDUAL,
                LEAVES,
            )
        if mu_ptr is not None:
            tl.store(mu_ptr + row, kept_mu, mask=rank == 0)
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, kept_rstd, mask=rank == 0)
        row += step
