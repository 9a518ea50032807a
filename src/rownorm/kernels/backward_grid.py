"""Backward kernel for rows that only many programs hold: each has a part of every row, and all of them run at once.

A group of ``n_parts`` programs takes rows in turn; a program keeps the sums over rows of its own columns in registers.
In every turn it

    sends a and b of its part of a row          reads h and dy from memory
    finishes the row of LAG turns ago           reads them again, from L2

so that what the others sent is there when it is wanted. Equations and conventions as in ``backward``, the exchange in
``grid``. The launch must be cooperative. Not for fp64: two numbers go into one word.
"""

import triton
import triton.language as tl

from .activations import is_precise
from .arithmetic import (
    gradient_before_affine,
    in_range,
    load_ahead,
    load_columns,
    store_row,
    sum_both,
    widened,
)
from .grid import ask, open_box, received_sums, send


@triton.jit
def _load_part(
    dy_ptr,
    h_ptr,
    mu_ptr,
    rstd_ptr,
    pre_bias,
    row,
    row_ok,
    col_ok,
    dy_start,
    h_start,
    cols,
    CENTER: tl.constexpr,
    IN_PAIRS: tl.constexpr,
):
    """(dy, h - mu, rstd) of a part of a row; 0 where there is no such row."""
    own = row + tl.arange(0, 1)[:, None]
    ok = row_ok & col_ok
    rstd = tl.load(rstd_ptr + own, mask=row_ok, other=0.0)
    h = load_ahead(h_ptr + h_start + cols, ok, tl.float32, IN_PAIRS)
    if pre_bias is not None:
        h += widened(pre_bias, tl.float32)
    dy = load_ahead(dy_ptr + dy_start + cols, ok, tl.float32, IN_PAIRS)
    if CENTER:
        mu = tl.load(mu_ptr + own, mask=row_ok, other=0.0)
        return dy, tl.where(col_ok, h - mu, 0.0), rstd
    else:
        return dy, h, rstd


@triton.jit
def _store_sums(partial_ptr, final_ptr, sums, partial, cols, col_ok, n_groups):
    """The sums over the rows of a group: one row of the partial sums; or all there is, if there is no other group."""
    if n_groups == 1:
        tl.store(final_ptr + cols, sums.to(final_ptr.dtype.element_ty), mask=col_ok)
    else:
        tl.store(partial_ptr + partial + cols, sums, mask=col_ok)


@triton.jit(
    do_not_specialize=[
        "dy_row_stride",
        "dh_row_stride",
        "h_row_stride",
        "n_rows",
        "n_cols",
        "n_parts",
        "part_cols",
    ]
)
def backward_grid(
    dy_ptr,
    dh_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    mu_ptr,
    rstd_ptr,
    mail_ptr,  # (n_rows, n_parts) words, all 0
    dx_ptr,
    dresidual_ptr,
    dpre_bias_partial_ptr,  # (groups, n_cols) partial sums
    dweight_partial_ptr,
    dbias_partial_ptr,
    dpre_bias_ptr,  # the sums themselves, written if there is one group
    dweight_ptr,
    dbias_ptr,
    dy_row_stride,
    dh_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    n_parts,
    part_cols,
    ALIGN: tl.constexpr,
    CENTER: tl.constexpr,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROUND_TO: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    LAG: tl.constexpr,
    STAGES: tl.constexpr,
    NUM_WARPS: tl.constexpr,
):
    COMPUTE: tl.constexpr = tl.float32
    IN_PAIRS: tl.constexpr = dpre_bias_ptr is None  # a third sum leaves no registers for it
    PRECISE: tl.constexpr = is_precise(dx_ptr, dresidual_ptr, dpre_bias_ptr, dweight_ptr, dbias_ptr)
    n_cols = n_cols * ALIGN
    part_cols = part_cols * ALIGN
    n = tl.cast(n_cols, COMPUTE)
    box = open_box()
    group = tl.program_id(0) // n_parts
    part = tl.program_id(0) % n_parts
    step = tl.num_programs(0) // n_parts
    lanes = tl.arange(0, BLOCK_COLS)[None, :]
    cols = part * part_cols + lanes
    col_ok = in_range(lanes, tl.minimum(part_cols, n_cols - part * part_cols), EVEN_COLS)
    pre_bias = load_columns(pre_bias_ptr, cols, col_ok) if pre_bias_ptr is not None else None
    weight = load_columns(weight_ptr, cols, col_ok) if weight_ptr is not None else None
    bias = load_columns(bias_ptr, cols, col_ok) if bias_ptr is not None else None
    dpre_bias = tl.zeros((1, BLOCK_COLS), COMPUTE)
    dweight = tl.zeros((1, BLOCK_COLS), COMPUTE)
    dbias = tl.zeros((1, BLOCK_COLS), COMPUTE)

    n_turns = tl.cdiv(n_rows - group, step)
    first_row = tl.cast(group, tl.int64)
    rows_of_turn = tl.cast(step, tl.int64)  # of all groups
    # Nothing has been sent yet, and nothing is asked for: LAG turns before the first one, rows are negative.
    words = ask(mail_ptr, first_row - LAG * rows_of_turn, n_rows, n_parts, BLOCK_PARTS, NUM_WARPS)
    for turn in tl.range(0, n_turns + LAG, num_stages=STAGES):
        # The row of this turn: its sums.
        row = first_row + turn * rows_of_turn
        row_ok = tl.arange(0, 1)[:, None] < n_rows - row
        dy, deviation, rstd = _load_part(
            dy_ptr,
            h_ptr,
            mu_ptr,
            rstd_ptr,
            pre_bias,
            row,
            row_ok,
            col_ok,
            row * dy_row_stride * ALIGN,
            row * h_row_stride * ALIGN,
            cols,
            CENTER,
            IN_PAIRS,
        )
        x_hat = deviation * rstd
        seen, dz, g = gradient_before_affine(
            dy, x_hat, weight, bias, WEIGHT_SHIFT, ACTIVATION, PRECISE, ROUND_TO, COMPUTE
        )
        if CENTER:
            a, b = sum_both(g * x_hat, g)
        else:
            if weight_ptr is not None:
                a = tl.sum(g * x_hat, axis=1, keep_dims=True)
            else:
                # By way of a number: else the row takes on the layout of ``a``, all of it in every thread.
                a = tl.full((1, 1), tl.sum(tl.sum(g * x_hat, axis=1)), COMPUTE)
            b = tl.zeros_like(a)
        send(mail_ptr + row * n_parts + (part + tl.arange(0, 1)[:, None]), a, b, row_ok)
        if dweight_ptr is not None:
            dweight += tl.sum(dz * seen, axis=0, keep_dims=True)
        if dbias_ptr is not None:
            dbias += tl.sum(dz, axis=0, keep_dims=True)

        # The row of LAG turns ago: what the other programs sent has come, or comes soon.
        row -= LAG * rows_of_turn
        row_ok = tl.arange(0, 1)[:, None] < tl.where(row >= 0, n_rows - row, 0)
        a, b = received_sums(
            words,
            box,
            turn,
            mail_ptr,
            row,
            n_rows,
            n_parts,
            BLOCK_PARTS,
            NUM_WARPS,
        )
        dy, deviation, rstd = _load_part(
            dy_ptr,
            h_ptr,
            mu_ptr,
            rstd_ptr,
            pre_bias,
            row,
            row_ok,
            col_ok,
            row * dy_row_stride * ALIGN,
            row * h_row_stride * ALIGN,
            cols,
            CENTER,
            IN_PAIRS,
        )
        _, _, g = gradient_before_affine(
            dy, deviation * rstd, weight, bias, WEIGHT_SHIFT, ACTIVATION, PRECISE, ROUND_TO, COMPUTE
        )
        # rstd * (g - b - a * x_hat), with as little as possible left to do for every element.
        # Of two products in a sum, it is said which one is not rounded: the same whatever else is asked for.
        dx = deviation * (-(a / n) * rstd * rstd)
        if CENTER:
            dx -= b / n * rstd
        dx = tl.fma(g, tl.broadcast_to(rstd, g.shape), dx)
        ok = row_ok & col_ok
        if dh_ptr is not None:
            dh_start = row * dh_row_stride * ALIGN
            dx += load_ahead(dh_ptr + dh_start + cols, ok, COMPUTE, IN_PAIRS)
        out = row * n_cols + cols
        if dx_ptr is not None:
            store_row(dx_ptr + out, dx, ok)
        if dresidual_ptr is not None:
            store_row(dresidual_ptr + out, dx, ok)
        if dpre_bias_ptr is not None:
            dpre_bias += tl.sum(dx, axis=0, keep_dims=True)
        # Asked for now, the words of the next turn are here when it begins, unless somebody is late.
        words = ask(mail_ptr, row + rows_of_turn, n_rows, n_parts, BLOCK_PARTS, NUM_WARPS)

    partial = tl.cast(group, tl.int64) * n_cols
    if dpre_bias_ptr is not None:
        _store_sums(dpre_bias_partial_ptr, dpre_bias_ptr, dpre_bias, partial, cols, col_ok, step)
    if dweight_ptr is not None:
        _store_sums(dweight_partial_ptr, dweight_ptr, dweight, partial, cols, col_ok, step)
    if dbias_ptr is not None:
        _store_sums(dbias_partial_ptr, dbias_ptr, dbias, partial, cols, col_ok, step)
