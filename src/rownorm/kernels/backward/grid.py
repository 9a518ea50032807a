"""Backward where programs all over the GPU share a row (regime grid): each has a part of every row.

    x_hat = (h - mu) * rstd                       dz = dy * activation'(z)
    g     = dz * (weight + WEIGHT_SHIFT)          a  = mean(g * x_hat),  b = mean(g) if CENTER else 0
    dx    = rstd * (g - b - a * x_hat) [+ dh]
    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx

A group of ``n_parts`` programs computes every n-th row, n groups in all. In every turn a program

    sends a and b of its part of a row                      loads h and dy from memory
    finishes the row of PIPELINE_DEPTH turns ago            loads them again, from L2

so that the messages of the other programs have arrived when they are needed (``exchange.grid``). In registers: the
parameters and the sums over rows of a program's columns, and one part of a row.

The launch must be cooperative, because programs wait for each other. Arithmetic is in fp32 only: a message is one word
of two numbers.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..activations import is_precise
from ..bundles import BACKWARD_INTEGERS, Matrix, ParameterPointers, Statistics, spec_of
from ..exchange.grid import Messages, fetch, open_slots, received_sums, send
from ..gradient import gradient_before_affine, store_dx
from ..memory import (
    in_range,
    load_parameter,
    load_parameters,
    load_pipelined,
    row_offset,
    widen,
)
from ..moments import sum_both
from .column_sums import SumPointers, store_column_sums


class _Part(NamedTuple):
    """A program's columns, and its inputs."""

    cols: Any  # (1, BLOCK_COLS)
    col_ok: Any  # which of them exist
    pre_bias: Any  # one tile, or an empty tuple
    dy_rows: Any  # a ``Matrix``
    h_rows: Any
    statistics: Any


@triton.jit
def _load_part(
    part,
    row,
    row_ok,
    CENTER: tl.constexpr,
    DIVISIBILITY: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    UNPACK_PAIRS: tl.constexpr,
):
    """(dy, h - mu, rstd) of a part of a row; 0 where there is no such row. row_ok: (1, 1)."""
    dy_row = row_offset(part.dy_rows, row, DIVISIBILITY, GROUP_ROWS)
    h_row = row_offset(part.h_rows, row, DIVISIBILITY, GROUP_ROWS)
    row_tile = row + tl.arange(0, 1)[:, None]
    ok = row_ok & part.col_ok
    rstd = tl.load(part.statistics.rstd_ptr + row_tile, mask=row_ok, other=0.0)
    h = load_pipelined(part.h_rows.ptr + h_row + part.cols, ok, tl.float32, UNPACK_PAIRS)
    if len(part.pre_bias) > 0:
        h += widen(part.pre_bias[0], tl.float32)
    dy = load_pipelined(part.dy_rows.ptr + dy_row + part.cols, ok, tl.float32, UNPACK_PAIRS)
    if CENTER:
        mu = tl.load(part.statistics.mu_ptr + row_tile, mask=row_ok, other=0.0)
        return dy, tl.where(part.col_ok, h - mu, 0.0), rstd
    else:
        return dy, h, rstd


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def backward_grid(
    dy_ptr,
    dh_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    mu_ptr,
    rstd_ptr,
    messages_ptr,  # (n_rows, n_parts) words of 64 bits, all 0
    dx_ptr,
    dresidual_ptr,
    dpre_bias_partial_ptr,  # (groups, n_cols) partial sums
    dweight_partial_ptr,
    dbias_partial_ptr,
    dpre_bias_ptr,  # the sums themselves, stored by a single group
    dweight_ptr,
    dbias_ptr,
    dy_row_stride,
    dh_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    n_parts,
    part_cols,
    dy_group_gap,
    dh_group_gap,
    h_group_gap,
    DIVISIBILITY: tl.constexpr,  # of strides, n_cols and part_cols, which are passed divided by it
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,  # at least part_cols, a power of two
    BLOCK_PARTS: tl.constexpr,  # at least n_parts, a power of two
    EVEN_COLS: tl.constexpr,  # whether every part has BLOCK_COLS columns
    PIPELINE_DEPTH: tl.constexpr,  # turns from sending the sums of a row to finishing it
    NUM_STAGES: tl.constexpr,  # tiles in flight, counting the one that is computed
    NUM_WARPS: tl.constexpr,
):
    SPEC: tl.constexpr = spec_of(PROGRAM)
    UNPACK_PAIRS: tl.constexpr = dpre_bias_ptr is None  # a third sum leaves no registers for it
    PRECISE: tl.constexpr = is_precise(dx_ptr, dresidual_ptr, dpre_bias_ptr, dweight_ptr, dbias_ptr)
    n_cols = n_cols * DIVISIBILITY
    part_cols = part_cols * DIVISIBILITY
    n = tl.cast(n_cols, tl.float32)
    slots = open_slots()
    group = tl.program_id(0) // n_parts
    rank = tl.program_id(0) % n_parts  # which part of a row
    step = tl.num_programs(0) // n_parts
    lanes = tl.arange(0, BLOCK_COLS)[None, :]
    cols = rank * part_cols + lanes
    col_ok = in_range(lanes, tl.minimum(part_cols, n_cols - rank * part_cols), EVEN_COLS)
    dh_rows = Matrix(dh_ptr, dh_row_stride, dh_group_gap)
    part = _Part(
        cols,
        col_ok,
        load_parameter(pre_bias_ptr, cols, col_ok),
        Matrix(dy_ptr, dy_row_stride, dy_group_gap),
        Matrix(h_ptr, h_row_stride, h_group_gap),
        Statistics(mu_ptr, rstd_ptr),
    )
    parameters = load_parameters(
        ParameterPointers(weight_ptr, bias_ptr, None, None, 0, 0), cols, col_ok
    )
    messages = Messages(messages_ptr, n_rows, n_parts)
    dpre_bias = tl.zeros((1, BLOCK_COLS), tl.float32)
    dweight = tl.zeros((1, BLOCK_COLS), tl.float32)
    dbias = tl.zeros((1, BLOCK_COLS), tl.float32)

    n_turns = tl.cdiv(n_rows - group, step)
    first_row = tl.cast(group, tl.int64)
    rows_per_turn = tl.cast(step, tl.int64)  # of all groups
    # PIPELINE_DEPTH turns before the first one, rows are negative: nothing is fetched.
    words = fetch(messages, first_row - PIPELINE_DEPTH * rows_per_turn, BLOCK_PARTS, NUM_WARPS)
    for turn in tl.range(0, n_turns + PIPELINE_DEPTH, num_stages=NUM_STAGES):
        # The row of this turn: send its sums.
        row = first_row + turn * rows_per_turn
        row_ok = tl.arange(0, 1)[:, None] < n_rows - row
        dy, deviation, rstd = _load_part(
            part, row, row_ok, SPEC.CENTER, DIVISIBILITY, GROUP_ROWS, UNPACK_PAIRS
        )
        x_hat = deviation * rstd
        rounded_x_hat, dz, g, _, _, _ = gradient_before_affine(
            dy, x_hat, (), parameters, 0, SPEC, PRECISE
        )
        if SPEC.CENTER:
            sum_products, sum_g = sum_both(g * x_hat, g)
        else:
            if weight_ptr is not None:
                sum_products = tl.sum(g * x_hat, axis=1, keep_dims=True)
            else:
                # Through a scalar: otherwise the row gets the layout of the sum, with all columns in every thread.
                sum_products = tl.full((1, 1), tl.sum(tl.sum(g * x_hat, axis=1)), tl.float32)
            sum_g = tl.zeros_like(sum_products)
        send(messages, row, rank, sum_products, sum_g, row_ok)
        if dweight_ptr is not None:
            dweight += tl.sum(dz * rounded_x_hat, axis=0, keep_dims=True)
        if dbias_ptr is not None:
            dbias += tl.sum(dz, axis=0, keep_dims=True)

        # The row of PIPELINE_DEPTH turns ago: receive the sums of the other programs and finish it.
        row -= PIPELINE_DEPTH * rows_per_turn
        row_ok = tl.arange(0, 1)[:, None] < tl.where(row >= 0, n_rows - row, 0)
        sum_products, sum_g = received_sums(
            words, slots, turn, messages, row, BLOCK_PARTS, NUM_WARPS
        )
        dy, deviation, rstd = _load_part(
            part, row, row_ok, SPEC.CENTER, DIVISIBILITY, GROUP_ROWS, UNPACK_PAIRS
        )
        _, _, g, _, _, _ = gradient_before_affine(
            dy, deviation * rstd, (), parameters, 0, SPEC, PRECISE
        )
        # rstd * (g - b - a * x_hat), arranged so that each element takes as few instructions as possible. The fma says
        # which of two products is not rounded, so the result does not depend on what else is computed.
        # a and b are the sums divided by n.
        dx = deviation * (-(sum_products / n) * rstd * rstd)
        if SPEC.CENTER:
            dx -= sum_g / n * rstd
        dx = tl.fma(g, tl.broadcast_to(rstd, g.shape), dx)
        ok = row_ok & col_ok
        if dh_ptr is not None:
            dh_row = row_offset(dh_rows, row, DIVISIBILITY, GROUP_ROWS)
            dx += load_pipelined(dh_ptr + dh_row + cols, ok, tl.float32, UNPACK_PAIRS)
        store_dx(dx_ptr, dresidual_ptr, row * n_cols + cols, dx, dx, ok)
        if dpre_bias_ptr is not None:
            dpre_bias += tl.sum(dx, axis=0, keep_dims=True)
        # Fetched now, the messages of the next turn are in registers when it begins, unless a program is late.
        words = fetch(messages, row + rows_per_turn, BLOCK_PARTS, NUM_WARPS)

    if dpre_bias_ptr is not None:
        dpre_bias_out = SumPointers(dpre_bias_partial_ptr, dpre_bias_ptr)
        store_column_sums(dpre_bias_out, dpre_bias, group, step, n_cols, cols, col_ok)
    if dweight_ptr is not None:
        dweight_out = SumPointers(dweight_partial_ptr, dweight_ptr)
        store_column_sums(dweight_out, dweight, group, step, n_cols, cols, col_ok)
    if dbias_ptr is not None:
        dbias_out = SumPointers(dbias_partial_ptr, dbias_ptr)
        store_column_sums(dbias_out, dbias, group, step, n_cols, cols, col_ok)
