"""Backward kernels that hold whole rows, and the one that finishes the sums over rows.

    x_hat = (h - mu) * rstd                       dz = dy * activation'(z)
    g     = dz * (weight + WEIGHT_SHIFT)          a  = mean(g * x_hat),  b = mean(g) if CENTER else 0
    dx    = rstd * (g - b - a * x_hat) [+ dh]
    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx

    backward_tile   a persistent grid: reads h and dy once, writes dx once, and keeps the sums over its rows in
                    registers (regimes tile and resident; with CLUSTER > 1, where a row is shared, cluster)
    column_sums     adds the sums of all programs, in a fixed order, and rounds them once; one program needs no adding

Where ROUND_TO names a dtype, the weight saw a rounded ``x_hat``: dweight uses that one, and rounding counts
as the identity, as it does in autograd. Strides and sizes arrive divided by ALIGN, as in ``forward``.
"""

import triton
import triton.language as tl

from .activations import is_precise
from .arithmetic import (
    added,
    gradient_before_affine,
    in_range,
    load_ahead,
    load_columns,
    store_row,
    sum_both,
    widened,
    x_hat_of,
)
from .cluster import (
    MOST_SENDERS,
    open_mailbox,
    received_sums,
    send,
    send_from_warps,
    wait_for_cluster,
)


@triton.jit
def _load_statistics(
    mu_ptr, rstd_ptr, rows, row_ok, CENTER: tl.constexpr, ACTIVATION: tl.constexpr
):
    rstd = tl.load(rstd_ptr + rows, mask=row_ok, other=0.0)
    mu = tl.load(mu_ptr + rows, mask=row_ok, other=0.0) if CENTER else tl.zeros_like(rstd)
    if CENTER and ACTIVATION is not None and rows.shape[0] == 1:
        # By way of numbers, which have no layout: what is needed in two of them is copied ahead twice, and with an
        # activation every instruction counts.
        mu = tl.full((1, 1), tl.sum(mu), mu.dtype)
        rstd = tl.full((1, 1), tl.sum(rstd), rstd.dtype)
    return mu, rstd


@triton.jit
def _load_parameter(
    ptr,
    lanes,
    n_cols,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    """A parameter in chunks, as the rows are; an empty tuple where there is none."""
    chunks = ()
    if ptr is not None:
        for c in tl.static_range(CHUNKS):
            cols = c * BLOCK_COLS + lanes
            chunks = chunks + (load_columns(ptr, cols, in_range(cols, n_cols, EVEN_COLS)),)
    return chunks


@triton.jit
def _zeros(
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, CHUNKS: tl.constexpr, COMPUTE: tl.constexpr
):
    chunks = ()
    for _ in tl.static_range(CHUNKS):
        chunks = chunks + (tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE),)
    return chunks


@triton.jit
def _rows(tile, SUM_ROWS: tl.constexpr):
    """The rows of a tile, or their sum."""
    if SUM_ROWS:
        return tl.sum(tile, axis=0, keep_dims=True)
    else:
        return tile


@triton.jit
def _store_sums(
    partial_ptr,
    final_ptr,
    sums,
    program,
    n_programs,
    lanes,
    n_cols,
    BLOCK_COLS: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    """The sums over this program's rows: one row of the partial sums; or all there is, if nobody else has rows."""
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK_COLS + lanes
        ok = in_range(cols, n_cols, EVEN_COLS)
        total = tl.sum(sums[c], axis=0, keep_dims=True)
        if n_programs == 1:
            tl.store(final_ptr + cols, total.to(final_ptr.dtype.element_ty), mask=ok)
        else:
            tl.store(partial_ptr + tl.cast(program, tl.int64) * n_cols + cols, total, mask=ok)


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
    dpre_bias_partial_ptr,  # (programs or clusters, n_cols) partial sums
    dweight_partial_ptr,
    dbias_partial_ptr,
    dpre_bias_ptr,  # the sums themselves, written if there is one program, or one cluster
    dweight_ptr,
    dbias_ptr,
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
    CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    STAGES: tl.constexpr,
    CLUSTER: tl.constexpr,
    SUM_ROWS: tl.constexpr,  # of each tile, at once: where a thread has a column of all of them, that is free
    READ_TOGETHER: tl.constexpr,  # h and dy: threads wait for them once, but hold more
    NUM_WARPS: tl.constexpr,
):
    PRECISE: tl.constexpr = is_precise(dx_ptr, dresidual_ptr, dpre_bias_ptr, dweight_ptr, dbias_ptr)
    # Where a tile has several rows, the way with more instructions but fewer slow ones was measured to be the faster.
    MAY_WAIT: tl.constexpr = READ_TOGETHER and BLOCK_ROWS == 1
    # One warp has nobody to wait for, and a mailbox no room for any number of senders.
    WARPS_SEND: tl.constexpr = (
        CLUSTER > 1
        and NUM_WARPS > 1
        and CLUSTER * NUM_WARPS <= MOST_SENDERS
        and BLOCK_COLS >= 4 * 32 * NUM_WARPS
    )
    SENDERS: tl.constexpr = CLUSTER * NUM_WARPS if WARPS_SEND else CLUSTER
    n_cols = n_cols * ALIGN
    share = 1.0 / tl.cast(n_cols, COMPUTE)  # of a column in a mean
    mailbox = open_mailbox() if CLUSTER > 1 else 0
    program = (
        tl.program_id(0) // CLUSTER
    )  # or cluster: who has a row of its own in the partial sums
    step = tl.num_programs(0) // CLUSTER
    first_col = (tl.program_id(0) % CLUSTER) * (CHUNKS * BLOCK_COLS)
    row_lanes = tl.arange(0, BLOCK_ROWS)[:, None]
    lanes = first_col + tl.arange(0, BLOCK_COLS)[None, :]
    pre_bias = _load_parameter(pre_bias_ptr, lanes, n_cols, BLOCK_COLS, CHUNKS, EVEN_COLS)
    weight = _load_parameter(weight_ptr, lanes, n_cols, BLOCK_COLS, CHUNKS, EVEN_COLS)
    bias = _load_parameter(bias_ptr, lanes, n_cols, BLOCK_COLS, CHUNKS, EVEN_COLS)
    SUMS: tl.constexpr = 1 if SUM_ROWS else BLOCK_ROWS
    dpre_bias = _zeros(SUMS, BLOCK_COLS, CHUNKS, COMPUTE)
    dweight = _zeros(SUMS, BLOCK_COLS, CHUNKS, COMPUTE)
    dbias = _zeros(SUMS, BLOCK_COLS, CHUNKS, COMPUTE)
    if CLUSTER > 1:
        wait_for_cluster()

    # Not cdiv, which adds first: close below 2^31 rows that is too much for 32 bits.
    n_tiles = n_rows // BLOCK_ROWS + (n_rows % BLOCK_ROWS > 0).to(tl.int32)
    n_turns = tl.cdiv(n_tiles - program, step)
    for turn in tl.range(0, n_turns, num_stages=STAGES):
        tile = program + turn * step
        rows = tl.cast(tile, tl.int64) * BLOCK_ROWS + row_lanes
        row_ok = in_range(rows, n_rows, BLOCK_ROWS == 1)
        mu, rstd = _load_statistics(mu_ptr, rstd_ptr, rows, row_ok, CENTER, ACTIVATION)
        h = ()
        dy = ()
        inside = ()
        for c in tl.static_range(CHUNKS):
            cols = c * BLOCK_COLS + lanes
            col_ok = in_range(cols, n_cols, EVEN_COLS)
            ok = row_ok & col_ok
            own_h = load_ahead(h_ptr + rows * h_row_stride * ALIGN + cols, ok, COMPUTE)
            if pre_bias_ptr is not None:
                own_h += widened(pre_bias[c], COMPUTE)
            h = h + (own_h,)
            if READ_TOGETHER:
                dy = dy + (load_ahead(dy_ptr + rows * dy_row_stride * ALIGN + cols, ok, COMPUTE),)
            inside = inside + (col_ok,)
        x_hat = x_hat_of(h, mu, rstd, inside, CENTER, CHUNKS)
        g = ()
        products = ()
        more_dweight = ()
        more_dbias = ()
        for c in tl.static_range(CHUNKS):
            if READ_TOGETHER:
                own_dy = dy[c]
            else:
                cols = c * BLOCK_COLS + lanes
                dy_row = rows * dy_row_stride * ALIGN
                own_dy = load_ahead(dy_ptr + dy_row + cols, row_ok & inside[c], COMPUTE)
            seen, dz, own_g = gradient_before_affine(
                own_dy,
                x_hat[c],
                weight[c] if weight_ptr is not None else None,
                bias[c] if bias_ptr is not None else None,
                WEIGHT_SHIFT,
                ACTIVATION,
                PRECISE,
                ROUND_TO,
                COMPUTE,
                MAY_WAIT,
            )
            g = g + (own_g,)
            products = products + (own_g * x_hat[c],)
            more_dweight = more_dweight + (dweight[c] + _rows(dz * seen, SUM_ROWS),)
            more_dbias = more_dbias + (dbias[c] + _rows(dz, SUM_ROWS),)
        a = added(products, CHUNKS)
        b = added(g, CHUNKS) if CENTER else tl.zeros_like(a)
        if WARPS_SEND:
            send_from_warps(mailbox, a, b, turn, NUM_WARPS)
        else:
            if CENTER:
                a, b = sum_both(a, b)
            else:
                a = tl.sum(a, axis=1, keep_dims=True)
                b = tl.zeros_like(a)
            if CLUSTER > 1:
                send(mailbox, tl.sum(a), tl.sum(b), turn)
        if dweight_partial_ptr is not None:
            dweight = more_dweight
        if dbias_partial_ptr is not None:
            dbias = more_dbias
        if CLUSTER > 1:
            a, b = received_sums(mailbox, turn, SENDERS)
        # rstd * (g - b - a * x_hat), with as little as possible left to do for every element.
        slope = -(a * share) * rstd
        if CENTER:  # of one column, g is b, and nothing may be left of them
            rstd *= (n_cols > 1).to(COMPUTE)
        offset = -(b * share) * rstd
        more_dpre_bias = ()
        for c in tl.static_range(CHUNKS):
            cols = c * BLOCK_COLS + lanes
            ok = row_ok & in_range(cols, n_cols, EVEN_COLS)
            dx = x_hat[c] * slope
            if CENTER:
                dx += offset
            dx = tl.fma(g[c], tl.broadcast_to(rstd, g[c].shape), dx)
            if dh_ptr is not None:
                dh_row = rows * dh_row_stride * ALIGN
                dx += load_ahead(dh_ptr + dh_row + cols, ok, COMPUTE)
            out = rows * n_cols + cols
            if dx_ptr is not None:
                store_row(dx_ptr + out, dx, ok)
            if dresidual_ptr is not None:
                store_row(dresidual_ptr + out, dx, ok)
            more_dpre_bias = more_dpre_bias + (dpre_bias[c] + _rows(dx, SUM_ROWS),)
        if dpre_bias_partial_ptr is not None:
            dpre_bias = more_dpre_bias

    if dpre_bias_partial_ptr is not None:
        _store_sums(
            dpre_bias_partial_ptr,
            dpre_bias_ptr,
            dpre_bias,
            program,
            step,
            lanes,
            n_cols,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
        )
    if dweight_partial_ptr is not None:
        _store_sums(
            dweight_partial_ptr,
            dweight_ptr,
            dweight,
            program,
            step,
            lanes,
            n_cols,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
        )
    if dbias_partial_ptr is not None:
        _store_sums(
            dbias_partial_ptr,
            dbias_ptr,
            dbias,
            program,
            step,
            lanes,
            n_cols,
            BLOCK_COLS,
            CHUNKS,
            EVEN_COLS,
        )


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
    """A program has a few columns of one parameter: there is little to do, and it is done sooner by many."""
    n_cols = n_cols * ALIGN
    n_blocks = tl.cdiv(n_cols, BLOCK_COLS)
    parameter = tl.program_id(0) // n_blocks
    cols = (tl.program_id(0) % n_blocks) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    if dpre_bias_ptr is not None:
        if parameter == 0:
            _sum_rows(
                dpre_bias_partial_ptr, dpre_bias_ptr, cols, n_partials, n_cols, COMPUTE, BLOCK_ROWS
            )
        parameter -= 1
    if dweight_ptr is not None:
        if parameter == 0:
            _sum_rows(
                dweight_partial_ptr, dweight_ptr, cols, n_partials, n_cols, COMPUTE, BLOCK_ROWS
            )
        parameter -= 1
    if dbias_ptr is not None:
        if parameter == 0:
            _sum_rows(dbias_partial_ptr, dbias_ptr, cols, n_partials, n_cols, COMPUTE, BLOCK_ROWS)
        parameter -= 1


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
