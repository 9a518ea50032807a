"""Backward where a program has whole rows in registers: h, dy and dh are loaded once, dx is stored once.

    x_hat = (h - mu) * rstd                       dz = dy * activation'(z)
    g     = dz * (weight + WEIGHT_SHIFT)          a  = mean(g * x_hat),  b = mean(g) if CENTER else 0
    dx    = rstd * (g - b - a * x_hat) [+ dh]
    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx

Regimes tile, resident and, with CLUSTER_SIZE > 1, cluster: there the programs of a thread block cluster share a row and
exchange a and b. The grid is persistent: a program computes many tiles of BLOCK_ROWS rows. In registers: the
parameters, the sums over rows, and x_hat and g of one tile. The next tiles are on their way to shared memory
(NUM_STAGES).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..activations import is_precise
from ..affine import x_hat_chunks
from ..bundles import (
    BACKWARD_INTEGERS,
    Columns,
    Matrix,
    ParameterPointers,
    Statistics,
    Tiling,
    spec_of,
)
from ..exchange.cluster import (
    open_slots,
    received_sums,
    send,
    send_from_warps,
    wait_for_cluster,
)
from ..gradient import gradient_before_affine, store_dx
from ..memory import (
    chunk,
    in_range,
    load_chunks,
    load_parameter_chunks,
    load_pipelined,
    row_offset,
    widen,
)
from ..moments import add_chunks, sum_both
from .column_sums import SumPointers, store_column_sums


class _Settings(NamedTuple):
    """Constants: how this kernel does its work. The kernel's signature explains those without a comment."""

    DIVISIBILITY: Any
    GROUP_ROWS: Any
    LOAD_DY_WITH_H: Any
    SUM_ROWS: Any
    CLUSTER_SIZE: Any
    SEND_PER_WARP: Any
    NUM_WARPS: Any
    PRECISE: Any  # results of more than 16 bits: see activations
    LATENCY_HIDDEN: Any


class _Inputs(NamedTuple):
    """What is loaded for every tile, and what stays in registers."""

    dy: Any  # a ``Matrix``
    h: Any
    pre_bias: Any  # chunks, an empty tuple where absent
    parameters: Any


class _Rows(NamedTuple):
    """The rows of one tile: their numbers and which of them exist, both (rows, 1)."""

    index: Any
    ok: Any


@triton.jit
def _load_statistics(statistics, rows, CENTER: tl.constexpr, AS_SCALARS: tl.constexpr):
    """(mu, rstd) of a tile's rows, (rows, 1) each."""
    rstd = tl.load(statistics.rstd_ptr + rows.index, mask=rows.ok, other=0.0)
    if CENTER:
        mu = tl.load(statistics.mu_ptr + rows.index, mask=rows.ok, other=0.0)
    else:
        mu = tl.zeros_like(rstd)
    if AS_SCALARS:
        # Scalars have no layout. A tensor that is needed in two layouts would be prefetched twice.
        mu = tl.full((1, 1), tl.sum(mu), mu.dtype)
        rstd = tl.full((1, 1), tl.sum(rstd), rstd.dtype)
    return mu, rstd


@triton.jit
def _load_chunk(matrix, rows, cols, ok, SPEC: tl.constexpr, SETTINGS: tl.constexpr):
    """Columns of a tile's rows of a ``Matrix``."""
    offset = row_offset(matrix, rows.index, SETTINGS.DIVISIBILITY, SETTINGS.GROUP_ROWS)
    return load_pipelined(matrix.ptr + offset + cols, ok, SPEC.COMPUTE_DTYPE)


@triton.jit
def _load_tile(
    inputs,
    rows,
    columns,
    SPEC: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """(h, dy, which columns exist) of a tile, in chunks; dy is an empty tuple without LOAD_DY_WITH_H."""
    h = ()
    dy = ()
    inside = ()
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, col_ok = chunk(columns, c, TILING)
        ok = rows.ok & col_ok
        h_chunk = _load_chunk(inputs.h, rows, cols, ok, SPEC, SETTINGS)
        if len(inputs.pre_bias) > 0:
            h_chunk += widen(inputs.pre_bias[c], SPEC.COMPUTE_DTYPE)
        h = h + (h_chunk,)
        if SETTINGS.LOAD_DY_WITH_H:
            dy = dy + (_load_chunk(inputs.dy, rows, cols, ok, SPEC, SETTINGS),)
        inside = inside + (col_ok,)
    return h, dy, inside


@triton.jit
def _gradients(
    x_hat,
    dy,
    inputs,
    rows,
    columns,
    dweight,
    dbias,
    SPEC: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """(g, g * x_hat, dweight and dbias with this tile added), in chunks."""
    g = ()
    products = ()
    next_dweight = ()
    next_dbias = ()
    for c in tl.static_range(TILING.NUM_CHUNKS):
        if SETTINGS.LOAD_DY_WITH_H:
            dy_chunk = dy[c]
        else:
            cols, col_ok = chunk(columns, c, TILING)
            dy_chunk = _load_chunk(inputs.dy, rows, cols, rows.ok & col_ok, SPEC, SETTINGS)
        rounded_x_hat, dz, g_chunk = gradient_before_affine(
            dy_chunk,
            x_hat[c],
            inputs.parameters,
            c,
            SPEC,
            SETTINGS.PRECISE,
            SETTINGS.LATENCY_HIDDEN,
        )
        g = g + (g_chunk,)
        products = products + (g_chunk * x_hat[c],)
        next_dweight = next_dweight + (
            dweight[c] + _rows_or_sum(dz * rounded_x_hat, SETTINGS.SUM_ROWS),
        )
        next_dbias = next_dbias + (dbias[c] + _rows_or_sum(dz, SETTINGS.SUM_ROWS),)
    return g, products, next_dweight, next_dbias


@triton.jit
def _row_sums(products, g, slots, turn, CENTER: tl.constexpr, SETTINGS: tl.constexpr):
    """The sums of g * x_hat and, if CENTER, of g over whole rows: (rows, 1), or numbers in a cluster."""
    a = add_chunks(products)
    b = add_chunks(g) if CENTER else tl.zeros_like(a)
    if SETTINGS.SEND_PER_WARP:
        send_from_warps(slots, a, b, turn, SETTINGS.NUM_WARPS)
        return received_sums(slots, turn, SETTINGS.CLUSTER_SIZE * SETTINGS.NUM_WARPS)
    else:
        if CENTER:
            a, b = sum_both(a, b)
        else:
            a = tl.sum(a, axis=1, keep_dims=True)
            b = tl.zeros_like(a)
        if SETTINGS.CLUSTER_SIZE > 1:
            send(slots, tl.sum(a), tl.sum(b), turn)
            a, b = received_sums(slots, turn, SETTINGS.CLUSTER_SIZE)
        return a, b


@triton.jit
def _zeros(ROWS: tl.constexpr, TILING: tl.constexpr, COMPUTE_DTYPE: tl.constexpr):
    """Sums over rows, in chunks."""
    chunks = ()
    for _ in tl.static_range(TILING.NUM_CHUNKS):
        chunks = chunks + (tl.zeros((ROWS, TILING.BLOCK_COLS), COMPUTE_DTYPE),)
    return chunks


@triton.jit
def _rows_or_sum(tile, SUM_ROWS: tl.constexpr):
    """The rows of a tile, or their sum."""
    if SUM_ROWS:
        return tl.sum(tile, axis=0, keep_dims=True)
    else:
        return tile


@triton.jit
def _store_sums(pointers, sums, program, n_programs, columns, TILING: tl.constexpr):
    """Store the sums over this program's rows, if they are wanted."""
    if pointers.partial_ptr is not None:
        for c in tl.static_range(TILING.NUM_CHUNKS):
            cols, ok = chunk(columns, c, TILING)
            total = tl.sum(sums[c], axis=0, keep_dims=True)
            store_column_sums(pointers, total, program, n_programs, columns.n_cols, cols, ok)


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def backward_resident(
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
    dpre_bias_ptr,  # the sums themselves, stored by a single program or cluster
    dweight_ptr,
    dbias_ptr,
    dy_row_stride,
    dh_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    dy_group_gap,
    dh_group_gap,
    h_group_gap,
    DIVISIBILITY: tl.constexpr,  # of strides, gaps and n_cols, which are passed divided by it: see ``bundles``
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_ROWS: tl.constexpr,  # rows of a tile, a power of two
    BLOCK_COLS: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,  # of each program
    EVEN_COLS: tl.constexpr,  # whether the programs' columns are exactly those of the row
    NUM_STAGES: tl.constexpr,  # tiles in flight, counting the one that is computed
    CLUSTER_SIZE: tl.constexpr,  # programs that share a row
    SUM_ROWS: tl.constexpr,  # keep one sum for all rows of a tile: free where a thread has a column of all of them
    LOAD_DY_WITH_H: tl.constexpr,  # wait once for h and dy, not twice, with more in registers
    LATENCY_HIDDEN: tl.constexpr,  # see activations.activation_gradient
    SCALAR_STATISTICS: tl.constexpr,  # mu and rstd are scalars, not tensors with a layout
    SEND_PER_WARP: tl.constexpr,  # warps send their own sums to the cluster, without waiting for the other warps
    NUM_WARPS: tl.constexpr,
):
    """A program or cluster computes every n-th tile, n in all. Other constants: ``bundles.Tiling``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    # In a cluster the last program may have several chunks beyond the row, so no chunk is known to be full.
    TILING: tl.constexpr = Tiling(
        BLOCK_COLS, NUM_CHUNKS, FULL_CHUNKS=NUM_CHUNKS if EVEN_COLS else 0
    )
    SETTINGS: tl.constexpr = _Settings(
        DIVISIBILITY,
        GROUP_ROWS,
        LOAD_DY_WITH_H,
        SUM_ROWS,
        CLUSTER_SIZE,
        SEND_PER_WARP,
        NUM_WARPS,
        is_precise(dx_ptr, dresidual_ptr, dpre_bias_ptr, dweight_ptr, dbias_ptr),
        LATENCY_HIDDEN,
    )

    n_cols = n_cols * DIVISIBILITY
    share = 1.0 / tl.cast(n_cols, SPEC.COMPUTE_DTYPE)  # of a column in a mean
    slots = open_slots() if CLUSTER_SIZE > 1 else 0
    program = tl.program_id(0) // CLUSTER_SIZE  # or cluster
    step = tl.num_programs(0) // CLUSTER_SIZE
    first_col = (tl.program_id(0) % CLUSTER_SIZE) * (NUM_CHUNKS * BLOCK_COLS)
    row_lanes = tl.arange(0, BLOCK_ROWS)[:, None]
    columns = Columns(first_col + tl.arange(0, BLOCK_COLS)[None, :], n_cols)
    dh_rows = Matrix(dh_ptr, dh_row_stride, dh_group_gap)
    pre_bias = load_chunks(pre_bias_ptr, columns, 0, NUM_CHUNKS, TILING)
    parameter_pointers = ParameterPointers(weight_ptr, bias_ptr)
    parameters = load_parameter_chunks(parameter_pointers, columns, 0, NUM_CHUNKS, TILING)
    inputs = _Inputs(
        Matrix(dy_ptr, dy_row_stride, dy_group_gap),
        Matrix(h_ptr, h_row_stride, h_group_gap),
        pre_bias,
        parameters,
    )
    SUM_SHAPE: tl.constexpr = 1 if SUM_ROWS else BLOCK_ROWS
    dpre_bias = _zeros(SUM_SHAPE, TILING, SPEC.COMPUTE_DTYPE)
    dweight = _zeros(SUM_SHAPE, TILING, SPEC.COMPUTE_DTYPE)
    dbias = _zeros(SUM_SHAPE, TILING, SPEC.COMPUTE_DTYPE)
    if CLUSTER_SIZE > 1:
        wait_for_cluster()

    # Not cdiv, which adds first: near 2^31 rows the sum exceeds 32 bits.
    n_tiles = n_rows // BLOCK_ROWS + (n_rows % BLOCK_ROWS > 0).to(tl.int32)
    n_turns = tl.cdiv(n_tiles - program, step)
    for turn in tl.range(0, n_turns, num_stages=NUM_STAGES):
        tile = program + turn * step
        row_index = tl.cast(tile, tl.int64) * BLOCK_ROWS + row_lanes
        rows = _Rows(row_index, in_range(row_index, n_rows, BLOCK_ROWS == 1))
        statistics = Statistics(mu_ptr, rstd_ptr)
        mu, rstd = _load_statistics(statistics, rows, SPEC.CENTER, SCALAR_STATISTICS)
        h, dy, inside = _load_tile(inputs, rows, columns, SPEC, TILING, SETTINGS)
        x_hat = x_hat_chunks(h, mu, rstd, inside, SPEC)
        g, products, next_dweight, next_dbias = _gradients(
            x_hat, dy, inputs, rows, columns, dweight, dbias, SPEC, TILING, SETTINGS
        )
        if dweight_partial_ptr is not None:
            dweight = next_dweight
        if dbias_partial_ptr is not None:
            dbias = next_dbias
        a, b = _row_sums(products, g, slots, turn, SPEC.CENTER, SETTINGS)

        # rstd * (g - b - a * x_hat), arranged so that each element takes as few instructions as possible.
        slope = -(a * share) * rstd
        if SPEC.CENTER:  # A row of one column has a gradient of exactly 0: g is b.
            rstd *= (n_cols > 1).to(SPEC.COMPUTE_DTYPE)
        offset = -(b * share) * rstd
        next_dpre_bias = ()
        for c in tl.static_range(NUM_CHUNKS):
            cols, col_ok = chunk(columns, c, TILING)
            ok = rows.ok & col_ok
            dx = x_hat[c] * slope
            if SPEC.CENTER:
                dx += offset
            dx = tl.fma(g[c], tl.broadcast_to(rstd, g[c].shape), dx)
            if dh_ptr is not None:
                dx += _load_chunk(dh_rows, rows, cols, ok, SPEC, SETTINGS)
            store_dx(dx_ptr, dresidual_ptr, rows.index * n_cols + cols, dx, ok)
            next_dpre_bias = next_dpre_bias + (dpre_bias[c] + _rows_or_sum(dx, SUM_ROWS),)
        if dpre_bias_partial_ptr is not None:
            dpre_bias = next_dpre_bias

    dpre_bias_out = SumPointers(dpre_bias_partial_ptr, dpre_bias_ptr)
    dweight_out = SumPointers(dweight_partial_ptr, dweight_ptr)
    dbias_out = SumPointers(dbias_partial_ptr, dbias_ptr)
    _store_sums(dpre_bias_out, dpre_bias, program, step, columns, TILING)
    _store_sums(dweight_out, dweight, program, step, columns, TILING)
    _store_sums(dbias_out, dbias, program, step, columns, TILING)
