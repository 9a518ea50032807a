"""Forward kernels that hold whole rows: one load, one store. The equations are in ``arithmetic``.

    forward_tile     BLOCK_ROWS rows in one program (regimes tile and resident)
    forward_cluster  one row at a time in CLUSTER programs, each with its share of the columns; they go from row to row,
                     and the next one is under way while this one is worked on (regime cluster)

Strides and sizes arrive divided by ALIGN, the largest power of two that divides all of them: multiplying
it back in is what shows the compiler that 16-byte accesses are safe.
Values are rounded at their stores and nowhere else, except ``x_hat`` where ROUND_TO names a dtype.
"""

import triton
import triton.language as tl

from .arithmetic import (
    activate,
    affine,
    in_range,
    inverse_sqrt,
    load_columns,
    load_h,
    moments,
    normalize,
)
from .cluster import (
    held,
    leave_cluster,
    open_mailbox,
    received_moments,
    received_sums,
    send,
    wait_for_cluster,
)


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
    COMPUTE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    n_cols = n_cols * ALIGN
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    row_ok = in_range(rows, n_rows, BLOCK_ROWS == 1)
    lanes = tl.arange(0, BLOCK_COLS)[None, :]
    x_row = rows * x_row_stride * ALIGN
    residual_row = rows * residual_row_stride * ALIGN
    out_row = rows * n_cols

    h = ()
    ok = ()
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        col_ok = in_range(cols, n_cols, EVEN_COLS or c < CHUNKS - 1)
        ok = ok + (row_ok & col_ok,)
        pre_bias = load_columns(pre_bias_ptr, cols, col_ok) if pre_bias_ptr is not None else None
        h = h + (
            load_h(x_ptr, residual_ptr, pre_bias, x_row, residual_row, cols, ok[c], COMPUTE, ""),
        )
        if h_ptr is not None:
            tl.store(h_ptr + out_row + cols, h[c].to(h_ptr.dtype.element_ty), mask=ok[c])
    mu, rstd = moments(h, ok, n_cols, CENTER, EPS, COMPUTE, CHUNKS)

    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        col_ok = in_range(cols, n_cols, EVEN_COLS or c < CHUNKS - 1)
        x_hat = normalize(h[c] - mu if CENTER else h[c], rstd, ROUND_TO, COMPUTE)
        # Loaded only now: until the statistics are known they would take registers from the rows in flight.
        weight = load_columns(weight_ptr, cols, col_ok) if weight_ptr is not None else None
        bias = load_columns(bias_ptr, cols, col_ok) if bias_ptr is not None else None
        y = activate(affine(x_hat, weight, bias, WEIGHT_SHIFT, COMPUTE), ACTIVATION)
        tl.store(y_ptr + out_row + cols, y.to(y_ptr.dtype.element_ty), mask=ok[c])
    if mu_ptr is not None:
        tl.store(mu_ptr + rows, mu, mask=row_ok)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + rows, rstd, mask=row_ok)


@triton.jit
def _load_row(
    ptr,
    row,
    there,
    lanes,
    n_cols,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    """This program's columns of a row, as they lie in memory; zeros where the row is not ``there``."""
    chunks = ()
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        ok = in_range(cols, n_cols, EVEN_COLS) & there
        chunks = chunks + (tl.load(ptr + row + cols, mask=ok, other=0.0),)
    return chunks


@triton.jit
def _held_h(
    x,
    residual,
    residual_ptr,
    pre_bias_ptr,
    cols,
    ok,
    COMPUTE: tl.constexpr,
    HOLD_X: tl.constexpr,
    HOLD_RESIDUAL: tl.constexpr,
):
    """``x [+ pre_bias] [+ residual]`` of one chunk, from what is held of it."""
    h = held(x, HOLD_X).to(COMPUTE)
    if pre_bias_ptr is not None:
        h += load_columns(pre_bias_ptr, cols, ok).to(COMPUTE)
    if residual_ptr is not None:
        h += held(residual, HOLD_RESIDUAL).to(COMPUTE)
    return h


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def _own_moments(
    x,
    residual,
    residual_ptr,
    pre_bias_ptr,
    h_ptr,
    out_row,
    lanes,
    n_cols,
    n_own,
    CENTER: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    HOLD_X: tl.constexpr,
    HOLD_RESIDUAL: tl.constexpr,
):
    """(mean, sum of squared deviations) of this program's columns; (0, sum of squares) uncentred. Stores h too."""
    total = tl.zeros((1, BLOCK_COLS), COMPUTE)
    square = tl.zeros((1, BLOCK_COLS), COMPUTE)
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        ok = in_range(cols, n_cols, EVEN_COLS)
        h = _held_h(
            x[c],
            residual[c],
            residual_ptr,
            pre_bias_ptr,
            cols,
            ok,
            COMPUTE,
            HOLD_X,
            HOLD_RESIDUAL,
        )
        if h_ptr is not None:
            tl.store(h_ptr + out_row + cols, h.to(h_ptr.dtype.element_ty), mask=ok)
        if CENTER:
            total += h * (1.0 / n_own)
        else:
            square += h * h
    mu = tl.sum(total)
    squares = tl.sum(square)
    if CENTER:
        total = tl.zeros((1, BLOCK_COLS), COMPUTE)
        for c in tl.static_range(CHUNKS):
            cols = c * BLOCK_COLS + lanes
            ok = in_range(cols, n_cols, EVEN_COLS)
            h = _held_h(
                x[c],
                residual[c],
                residual_ptr,
                pre_bias_ptr,
                cols,
                ok,
                COMPUTE,
                HOLD_X,
                HOLD_RESIDUAL,
            )
            deviation = tl.where(ok, h - mu, 0.0)
            total += deviation
            square += deviation * deviation
        # The deviations' own mean is what rounding did to the first mean: it corrects both moments.
        shift, squares = tl.reduce((total, square), 1, _add_pairs)
        shift = tl.sum(shift) / n_own
        squares = tl.sum(squares) - n_own * shift * shift
        squares = tl.where(squares < 0.0, 0.0, squares)
        mu += shift
    return mu, squares


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
    COMPUTE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    CLUSTER: tl.constexpr,
    HOLD_X: tl.constexpr,
    HOLD_RESIDUAL: tl.constexpr,
):
    COLS: tl.constexpr = CHUNKS * BLOCK_COLS
    n_cols = n_cols * ALIGN
    n = tl.cast(n_cols, COMPUTE)
    mailbox = open_mailbox() if CLUSTER > 1 else 0
    rank = tl.program_id(0) % CLUSTER
    step = tl.num_programs(0) // CLUSTER
    row = tl.cast(tl.program_id(0) // CLUSTER, tl.int64)
    lanes = rank * COLS + tl.arange(0, BLOCK_COLS)[None, :]
    n_own = tl.cast(tl.maximum(tl.minimum(n_cols - rank * COLS, COLS), 1), COMPUTE)
    x_stride = tl.cast(x_row_stride, tl.int64) * ALIGN
    residual_stride = tl.cast(residual_row_stride, tl.int64) * ALIGN

    there = row < n_rows
    next_x = _load_row(x_ptr, row * x_stride, there, lanes, n_cols, BLOCK_COLS, CHUNKS, EVEN_COLS)
    next_residual = next_x
    if residual_ptr is not None:
        next_residual = _load_row(
            residual_ptr, row * residual_stride, there, lanes, n_cols, BLOCK_COLS, CHUNKS, EVEN_COLS
        )
    if CLUSTER > 1:
        wait_for_cluster()
    for turn in range(0, tl.cdiv(n_rows - tl.cast(row, tl.int32), step)):
        x = next_x
        residual = next_residual
        next_row = row + step
        there = next_row < n_rows
        next_x = _load_row(
            x_ptr, next_row * x_stride, there, lanes, n_cols, BLOCK_COLS, CHUNKS, EVEN_COLS
        )
        if residual_ptr is not None:
            next_residual = _load_row(
                residual_ptr,
                next_row * residual_stride,
                there,
                lanes,
                n_cols,
                BLOCK_COLS,
                CHUNKS,
                EVEN_COLS,
            )

        mu, squares = _own_moments(
            x,
            residual,
            residual_ptr,
            pre_bias_ptr,
            h_ptr,
            row * n_cols,
            lanes,
            n_cols,
            n_own,
            CENTER,
            COMPUTE,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
            HOLD_X,
            HOLD_RESIDUAL,
        )
        if CLUSTER > 1:
            send(mailbox, mu, squares, turn)
            if CENTER:
                mu, squares = received_moments(mailbox, turn, n_cols, n, COLS, CLUSTER)
            else:
                mu, squares = received_sums(mailbox, turn, CLUSTER)
        rstd = inverse_sqrt(squares / n, EPS, COMPUTE)

        for c in tl.static_range(CHUNKS):
            cols = c * BLOCK_COLS + lanes
            ok = in_range(cols, n_cols, EVEN_COLS)
            h = _held_h(
                x[c],
                residual[c],
                residual_ptr,
                pre_bias_ptr,
                cols,
                ok,
                COMPUTE,
                HOLD_X,
                HOLD_RESIDUAL,
            )
            x_hat = normalize(h - mu if CENTER else h, rstd, ROUND_TO, COMPUTE)
            weight = load_columns(weight_ptr, cols, ok) if weight_ptr is not None else None
            bias = load_columns(bias_ptr, cols, ok) if bias_ptr is not None else None
            y = activate(affine(x_hat, weight, bias, WEIGHT_SHIFT, COMPUTE), ACTIVATION)
            tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=ok)
        if mu_ptr is not None:
            tl.store(mu_ptr + row, mu, mask=rank == 0)
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, rstd, mask=rank == 0)
        row = next_row
    if CLUSTER > 1:
        leave_cluster()
