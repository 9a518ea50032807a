"""Forward where the programs of a thread block cluster share a row (regime cluster): one load, one store.

    h    = x [+ pre_bias] [+ residual]
    mu   = mean(h) if CENTER else 0
    rstd = 1 / sqrt(mean((h - mu)^2) + EPS)
    y    = activation((h - mu) * rstd * (weight + WEIGHT_SHIFT) + bias)

Each of CLUSTER_SIZE programs has NUM_CHUNKS * BLOCK_COLS columns. In registers: x and the residual as they were loaded,
16-bit numbers two to a register (``packing``). With PREFETCH_ROWS a cluster computes many rows and loads the next one
while it works on this one. Without, there is a cluster for every row, and other programs on the same SM hide latency:
the fewer registers each takes, the more of them fit.

Sums are exchanged as in ``exchange.cluster``. A row whose mean is small (``moments.moments_about_zero``) takes one
exchange. Other rows are rare. They are reloaded, with more exchanges, in code that takes few registers. Arithmetic is
in fp32 only.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..activations import activate, is_precise
from ..affine import affine, round_x_hat
from ..bundles import (
    FORWARD_INTEGERS,
    Chunking,
    ColumnRange,
    Columns,
    Matrix,
    Outputs,
    ParameterPointers,
    Parameters,
    Source,
    Statistics,
    Tiling,
    spec_of,
)
from ..exchange.cluster import open_slots, received_sums, send, wait_for_cluster
from ..memory import (
    chunk,
    load_parameter,
    load_parameter_chunks,
    round_to,
    row_offset,
    store_row,
    store_statistics,
    widen,
)
from ..moments import (
    inverse_std,
    moments_about,
    moments_about_zero,
    scales,
    sum_both,
    sum_vectors,
)
from ..packing import pack, unpack
from .column_range import apply_range, reloaded_sums


class _Settings(NamedTuple):
    """Constants: how this kernel does its work. The kernel's signature explains those without a comment."""

    GROUP_ROWS: Any
    CLUSTER_SIZE: Any
    LOAD_EVICTION: Any
    PACK_X: Any
    PACK_RESIDUAL: Any
    VECTOR_WIDTH: Any
    LOADED_CHUNKS: Any  # chunks of weight and bias that are loaded before the statistics are known
    FAST_RSTD: Any
    STORED_H_DTYPE: Any
    EVICT_FIRST: Any


class _Row(NamedTuple):
    """A program's columns of x and the residual: a tuple of chunks each, empty where the tensor is absent."""

    x: Any
    residual: Any


@triton.jit
def _load_chunks(
    ptr, offset, columns, TILING: tl.constexpr, PACK: tl.constexpr, EVICTION: tl.constexpr
):
    """This program's columns of a row, in the row's dtype; an empty tuple where the tensor is absent."""
    chunks = ()
    if ptr is not None:
        for c in tl.static_range(TILING.NUM_CHUNKS):
            cols, ok = chunk(columns, c, TILING)
            pointers = ptr + offset + cols
            loaded = tl.load(pointers, mask=ok, other=0.0, eviction_policy=EVICTION)
            chunks = chunks + (pack(loaded, PACK),)
    return chunks


@triton.jit
def _load_row(x, residual, row, columns, TILING: tl.constexpr, SETTINGS: tl.constexpr):
    """This program's columns of a row of x and of the residual. x, residual: ``Matrix`` with strides in elements."""
    EVICTION: tl.constexpr = SETTINGS.LOAD_EVICTION
    x_row = row_offset(x, row, 1, SETTINGS.GROUP_ROWS)
    residual_row = row_offset(residual, row, 1, SETTINGS.GROUP_ROWS)
    PACK_RESIDUAL: tl.constexpr = SETTINGS.PACK_RESIDUAL
    return _Row(
        _load_chunks(x.ptr, x_row, columns, TILING, SETTINGS.PACK_X, EVICTION),
        _load_chunks(residual.ptr, residual_row, columns, TILING, PACK_RESIDUAL, EVICTION),
    )


@triton.jit
def _h(row, source, cols, ok, C: tl.constexpr, SETTINGS: tl.constexpr):
    """``x [+ pre_bias] [+ residual]`` of chunk C, in fp32."""
    h = unpack(row.x[C], source.x_ptr.dtype.element_ty, SETTINGS.PACK_X)
    pre_bias = load_parameter(source.pre_bias_ptr, cols, ok)
    if len(pre_bias) > 0:
        h += widen(pre_bias[0], tl.float32)
    if source.residual_ptr is not None:
        dtype: tl.constexpr = source.residual_ptr.dtype.element_ty
        h += unpack(row.residual[C], dtype, SETTINGS.PACK_RESIDUAL)
    return h


@triton.jit
def _sums(
    row,
    source,
    outputs,
    columns,
    CENTER: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """The sums of h, if CENTER, and of its squares over this program's columns. Stores h if there is a pointer."""
    total = tl.zeros((1, TILING.BLOCK_COLS // SETTINGS.VECTOR_WIDTH), tl.float32)
    squares = tl.zeros((1, TILING.BLOCK_COLS // SETTINGS.VECTOR_WIDTH), tl.float32)
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, ok = chunk(columns, c, TILING)
        h = _h(row, source, cols, ok, c, SETTINGS)
        if outputs.h_ptr is not None:
            store_row(outputs.h_ptr + outputs.row + cols, h, ok)
        squares += sum_vectors(h * h, SETTINGS.VECTOR_WIDTH)
        if CENTER:
            total += sum_vectors(h, SETTINGS.VECTOR_WIDTH)
    if CENTER:
        total, squares = sum_both(total, squares)
        return tl.sum(total), tl.sum(squares)
    else:
        return 0.0, tl.sum(squares)


@triton.jit
def _exchanged(slots, exchange, total, squares, CLUSTER_SIZE: tl.constexpr):
    """The sums over a row, from those of its programs. exchange: how many exchanges came before."""
    if CLUSTER_SIZE > 1:
        send(slots, total, squares, exchange)
        return received_sums(slots, exchange, CLUSTER_SIZE)
    else:
        return total, squares


@triton.jit
def _reloaded_sums(
    slots,
    exchange,
    origin,
    factor,
    source,
    columns,
    ROUND_H_TO: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """``column_range.reloaded_sums`` over the whole row."""
    total, squares = reloaded_sums(
        origin, factor, source, columns, ROUND_H_TO, TILING.BLOCK_COLS, SETTINGS.VECTOR_WIDTH
    )
    return _exchanged(slots, exchange, total, squares, SETTINGS.CLUSTER_SIZE)


@triton.jit
def _large_mean_moments(
    slots,
    exchange,
    m2,
    mu,
    source,
    columns,
    n,
    SPEC: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """(next exchange, mu, rstd, mu and rstd of h as stored) of a row whose mean is not small; two passes reload it.

    m2, mu: from the first pass, too inaccurate for this row.
    """
    for turn in range(0, 2):
        # First the mean, from h / n because the sum of h could overflow; then the deviations from it.
        origin = tl.where(turn == 0, 0.0, mu)
        factor, rest = scales(tl.where(turn == 0, float("inf"), m2), n)
        total, squares = _reloaded_sums(
            slots, exchange, origin, factor, source, columns, None, TILING, SETTINGS
        )
        exchange += 1
        mu, m2 = moments_about(origin, total * rest, squares, n)
    rstd = inverse_std(m2, n, SPEC, SETTINGS.FAST_RSTD)
    stored_mu, stored_rstd = mu, rstd
    DTYPE: tl.constexpr = SETTINGS.STORED_H_DTYPE
    if DTYPE is not None:
        origin = round_to(mu, DTYPE, tl.float32)
        factor, rest = scales(m2, n)
        total, squares = _reloaded_sums(
            slots, exchange, origin, factor, source, columns, DTYPE, TILING, SETTINGS
        )
        exchange += 1
        stored_mu, m2 = moments_about(origin, total * rest, squares, n)
        stored_rstd = inverse_std(m2, n, SPEC, SETTINGS.FAST_RSTD)
    return exchange, mu, rstd, stored_mu, stored_rstd


class _RowData(NamedTuple):
    """A row when its statistics are known."""

    row: Any  # the ``_Row``
    source: Any
    mu: Any
    rstd: Any
    parameters: Any  # the first LOADED_CHUNKS chunks
    parameter_pointers: Any


@triton.jit
def _store_y(
    row_data,
    outputs,
    columns,
    SPEC: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """Normalize a row and store y.

    ``x_hat`` is fused: for a row with a standard deviation larger than its mean that is as accurate as two steps.
    """
    row, source, mu, rstd, parameters, parameter_pointers = row_data
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, ok = chunk(columns, c, TILING)
        h = _h(row, source, cols, ok, c, SETTINGS)
        if SETTINGS.LOADED_CHUNKS <= c + 1 and c + 1 < TILING.NUM_CHUNKS:
            # Before y is stored, because loads are not moved above a store.
            following = load_parameter_chunks(parameter_pointers, columns, c + 1, c + 2, TILING)
            parameters = Parameters(
                parameters.weight + following.weight,
                parameters.bias + following.bias,
                parameters.scale,
                parameters.shift,
            )
        x_hat = tl.fma(h, rstd, -mu * rstd) if SPEC.CENTER else h * rstd
        z = affine(round_x_hat(x_hat, SPEC), parameters, c, SPEC)
        y = activate(z, SPEC.ACTIVATION, is_precise(outputs.y_ptr))
        store_row(outputs.y_ptr + outputs.row + cols, y, ok, SETTINGS.EVICT_FIRST)


@triton.jit(do_not_specialize=FORWARD_INTEGERS)
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
    x_group_gap,
    residual_group_gap,
    DIVISIBILITY: tl.constexpr,  # of strides, gaps and n_cols, which are passed divided by it: see ``bundles``
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,  # of each program
    EVEN_COLS: tl.constexpr,  # whether the programs' columns are exactly those of the row
    CLUSTER_SIZE: tl.constexpr,  # programs that share a row
    PREFETCH_ROWS: tl.constexpr,  # load the next row while this one is computed
    EVICT_FIRST: tl.constexpr,  # results leave L2 first: see memory.store_row
    FAST_RSTD: tl.constexpr,  # rstd without subroutines: see moments.inverse_std
    LOAD_EVICTION: tl.constexpr,  # eviction policy of loads of x and the residual, or ""
    PACK_X: tl.constexpr,  # two 16-bit numbers of x to a register
    PACK_RESIDUAL: tl.constexpr,
    VECTOR_WIDTH: tl.constexpr,  # neighboring columns of one thread
    KEPT_CHUNKS: tl.constexpr,  # chunks of weight and bias that stay in registers, where there are both
):
    """A cluster computes every n-th row, n clusters in all. Other constants: ``bundles.Tiling``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    # The last program of a cluster may have several chunks beyond the row, so no chunk is known to be full.
    TILING: tl.constexpr = Tiling(
        BLOCK_COLS, NUM_CHUNKS, FULL_CHUNKS=NUM_CHUNKS if EVEN_COLS else 0
    )
    # The plan does not depend on which parameters there are.
    TWO_PARAMETERS: tl.constexpr = weight_ptr is not None and bias_ptr is not None
    KEEP_PARAMETERS: tl.constexpr = KEPT_CHUNKS > 0 and TWO_PARAMETERS
    LOADED_CHUNKS: tl.constexpr = KEPT_CHUNKS if KEEP_PARAMETERS else 1
    SETTINGS: tl.constexpr = _Settings(
        GROUP_ROWS,
        CLUSTER_SIZE,
        LOAD_EVICTION,
        PACK_X,
        PACK_RESIDUAL,
        VECTOR_WIDTH,
        LOADED_CHUNKS,
        FAST_RSTD,
        SPEC.STORED_H_DTYPE if mu_ptr is not None else None,
        EVICT_FIRST,
    )

    n_cols = n_cols * DIVISIBILITY
    n = tl.cast(n_cols, tl.float32)
    slots = open_slots() if CLUSTER_SIZE > 1 else 0
    rank = tl.program_id(0) % CLUSTER_SIZE
    step = tl.num_programs(0) // CLUSTER_SIZE
    row = tl.cast(tl.program_id(0) // CLUSTER_SIZE, tl.int64)
    first_col = rank * (NUM_CHUNKS * BLOCK_COLS)
    end_col = tl.minimum(first_col + NUM_CHUNKS * BLOCK_COLS, n_cols)
    columns = Columns(first_col + tl.arange(0, BLOCK_COLS)[None, :], n_cols)
    x_stride = tl.cast(x_row_stride, tl.int64) * DIVISIBILITY
    residual_stride = tl.cast(residual_row_stride, tl.int64) * DIVISIBILITY
    x_rows = Matrix(x_ptr, x_stride, x_group_gap * DIVISIBILITY)
    residual_rows = Matrix(residual_ptr, residual_stride, residual_group_gap * DIVISIBILITY)
    # x and residual are in a ``_Row``.
    source = Source(x_ptr, residual_ptr, pre_bias_ptr, None, None, None, None, 0, 0)
    parameter_pointers = ParameterPointers(weight_ptr, bias_ptr, None, None, 0, 0)
    n_turns = tl.cast(tl.cdiv(n_rows - row, step), tl.int32)  # in 64 bits, since cdiv adds first

    next_row = _Row((), ())
    if PREFETCH_ROWS:
        load_index = tl.minimum(row, n_rows - 1)  # beyond the last row, any row will do
        next_row = _load_row(x_rows, residual_rows, load_index, columns, TILING, SETTINGS)
    if KEEP_PARAMETERS:
        parameters = load_parameter_chunks(parameter_pointers, columns, 0, LOADED_CHUNKS, TILING)
    if CLUSTER_SIZE > 1:
        wait_for_cluster()
    exchange = 0  # how many exchanges came before
    for _ in range(0, n_turns if PREFETCH_ROWS else 1):
        this_row = next_row
        load_index = tl.minimum(row + step, n_rows - 1) if PREFETCH_ROWS else row
        loaded = _load_row(x_rows, residual_rows, load_index, columns, TILING, SETTINGS)
        if PREFETCH_ROWS:
            next_row = loaded
        else:
            this_row = loaded

        outputs = Outputs(y_ptr, h_ptr, row * n_cols)
        total, squares = _sums(this_row, source, outputs, columns, SPEC.CENTER, TILING, SETTINGS)
        if not KEEP_PARAMETERS:
            parameters = load_parameter_chunks(
                parameter_pointers, columns, 0, LOADED_CHUNKS, TILING
            )
        total, squares = _exchanged(slots, exchange, total, squares, CLUSTER_SIZE)
        exchange += 1
        mu = 0.0
        if SPEC.CENTER:
            mu, squares, mean_is_small = moments_about_zero(total, squares, n)
        rstd = inverse_std(squares, n, SPEC, FAST_RSTD)
        stored_mu, stored_rstd = mu, rstd

        if SPEC.CENTER and not mean_is_small:
            column_range = ColumnRange(first_col, end_col)
            x_row = row_offset(x_rows, row, 1, GROUP_ROWS)
            residual_row = row_offset(residual_rows, row, 1, GROUP_ROWS)
            reloaded = Source(
                x_ptr, residual_ptr, pre_bias_ptr, None, None, x_row, residual_row, 0, 0
            )
            exchange, mu, rstd, stored_mu, stored_rstd = _large_mean_moments(
                slots, exchange, squares, mu, reloaded, column_range, n, SPEC, TILING, SETTINGS
            )
            y = Outputs(y_ptr, None, row * n_cols)  # h is stored already
            LOOP: tl.constexpr = Chunking(BLOCK_COLS, EVEN_COLS=False)
            tile_mu = tl.full((1, 1), mu, tl.float32)
            tile_rstd = tl.full((1, 1), rstd, tl.float32)
            apply_range(
                reloaded, column_range, parameter_pointers, y, tile_mu, tile_rstd, SPEC, LOOP, True
            )
        else:
            y = Outputs(y_ptr, None, row * n_cols)
            row_data = _RowData(this_row, source, mu, rstd, parameters, parameter_pointers)
            _store_y(row_data, y, columns, SPEC, TILING, SETTINGS)
        store_statistics(Statistics(mu_ptr, rstd_ptr), row, stored_mu, stored_rstd, rank == 0)
        row += step
