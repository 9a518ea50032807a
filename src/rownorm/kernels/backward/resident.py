"""Backward where a program has whole rows in registers: h, dy and dh are loaded once, dx is stored once.

    x_hat = (u - mu) * rstd                       dm = dy * activation'(m),  m = z * (scale + SCALE_SHIFT) + shift
    dz    = dm * (scale + SCALE_SHIFT)            g  = dz * (weight + WEIGHT_SHIFT)
    a     = mean(g * x_hat)                       b  = mean(g) if CENTER else 0
    dx    = rstd * (g - b - a * x_hat) [+ dh]     u, a gate and a residual_gate: see ``gradient``
    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx
    dscale  = sum over the rows of a sample of dm * z,  dshift = sum of dm

Regimes tile, resident and, with CLUSTER_SIZE > 1, cluster: there the programs of a thread block cluster share a row and
exchange a and b. The grid is persistent: a program computes many tiles of BLOCK_ROWS rows. In registers: the
parameters, the sums over rows, and of one tile x_hat and g, and where there is a gate, the gate and h. The next tiles
are on their way to shared memory (NUM_STAGES).

Rows that share scale, shift and residual_gate are computed one span after the other (see ``column_sums``), with those
of the sample in registers. Where every row has its own (OWN_SAMPLES), they are loaded with the row, and their gradients
are stored with dx.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..activations import is_precise
from ..affine import gate_h, x_hat_chunks
from ..bundles import (
    BACKWARD_INTEGERS,
    Columns,
    Matrix,
    Modulation,
    ParameterPointers,
    Parameters,
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
from ..gradient import gradient_before_affine, gradient_before_gate, store_dx
from ..memory import (
    chunk,
    in_range,
    load_chunks,
    load_parameter_chunks,
    load_pipelined,
    offsets_of_sample,
    round_to,
    row_offset,
    store_row,
    widen,
)
from ..moments import add_chunks, sum_both
from .column_sums import Spans, SumPointers, row_of_sample, span_of, store_column_sums


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
    SCALAR_STATISTICS: Any


class _Inputs(NamedTuple):
    """What is loaded for every tile, and what stays in registers."""

    dy: Any  # a ``Matrix``
    dh: Any
    h: Any
    gate: Any
    x: Any  # absent without a residual_gate
    statistics: Any
    pre_bias: Any  # chunks, an empty tuple where absent: added to x where it is there, else to h


class _Outputs(NamedTuple):
    """What is stored for every tile. None: not wanted. The last three: where every row has its own."""

    dx_ptr: Any
    dresidual_ptr: Any
    dgate_ptr: Any
    dscale_ptr: Any
    dshift_ptr: Any
    dresidual_gate_ptr: Any


class _Sums(NamedTuple):
    """Sums over rows, in chunks."""

    dpre_bias: Any
    dweight: Any
    dbias: Any
    dscale: Any
    dshift: Any
    dresidual_gate: Any


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
    """(h, the gate, dy, which columns exist) of a tile, in chunks. The gate is an empty tuple where there is none, dy
    without LOAD_DY_WITH_H.
    """
    h = ()
    gate = ()
    dy = ()
    inside = ()
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, col_ok = chunk(columns, c, TILING)
        ok = rows.ok & col_ok
        h_chunk = _load_chunk(inputs.h, rows, cols, ok, SPEC, SETTINGS)
        if len(inputs.pre_bias) > 0 and inputs.x.ptr is None:
            h_chunk += widen(inputs.pre_bias[c], SPEC.COMPUTE_DTYPE)
            h_chunk = round_to(h_chunk, SPEC.ROUND_EACH_TO, SPEC.COMPUTE_DTYPE)
        h = h + (h_chunk,)
        if inputs.gate.ptr is not None:
            gate = gate + (_load_chunk(inputs.gate, rows, cols, ok, SPEC, SETTINGS),)
        if SETTINGS.LOAD_DY_WITH_H:
            dy = dy + (_load_chunk(inputs.dy, rows, cols, ok, SPEC, SETTINGS),)
        inside = inside + (col_ok,)
    return h, gate, dy, inside


@triton.jit
def _gradients(
    x_hat,
    gate,
    dy,
    inputs,
    outputs,
    parameters,
    rows,
    columns,
    sums,
    SPEC: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """(g, g * x_hat, the sums with this tile added, except dpre_bias and dresidual_gate), in chunks."""
    g = ()
    products = ()
    dweight = ()
    dbias = ()
    dscale = ()
    dshift = ()
    for c in tl.static_range(TILING.NUM_CHUNKS):
        if SETTINGS.LOAD_DY_WITH_H:
            dy_chunk = dy[c]
        else:
            cols, col_ok = chunk(columns, c, TILING)
            dy_chunk = _load_chunk(inputs.dy, rows, cols, rows.ok & col_ok, SPEC, SETTINGS)
        rounded_x_hat, dz, g_chunk, dscale_rows, dshift_rows, dgate = gradient_before_affine(
            dy_chunk,
            x_hat[c],
            gate,
            parameters,
            c,
            SPEC,
            SETTINGS.PRECISE,
            SETTINGS.LATENCY_HIDDEN,
        )
        g = g + (g_chunk,)
        products = products + (g_chunk * x_hat[c],)
        dweight = dweight + (sums.dweight[c] + _rows_or_sum(dz * rounded_x_hat, SETTINGS.SUM_ROWS),)
        dbias = dbias + (sums.dbias[c] + _rows_or_sum(dz, SETTINGS.SUM_ROWS),)
        dscale = dscale + (sums.dscale[c] + _rows_or_sum(dscale_rows, SETTINGS.SUM_ROWS),)
        dshift = dshift + (sums.dshift[c] + _rows_or_sum(dshift_rows, SETTINGS.SUM_ROWS),)
        cols, col_ok = chunk(columns, c, TILING)
        offsets = rows.index * columns.n_cols + cols
        if outputs.dscale_ptr is not None:
            store_row(outputs.dscale_ptr + offsets, dscale_rows, rows.ok & col_ok)
        if outputs.dshift_ptr is not None:
            store_row(outputs.dshift_ptr + offsets, dshift_rows, rows.ok & col_ok)
        if outputs.dgate_ptr is not None and not SPEC.GATE_FIRST:
            store_row(outputs.dgate_ptr + offsets, dgate, rows.ok & col_ok)
    sums = _Sums(sums.dpre_bias, dweight, dbias, dscale, dshift, sums.dresidual_gate)
    return g, products, sums


@triton.jit
def _row_sums(products, g, slots, turn, CENTER: tl.constexpr, SETTINGS: tl.constexpr):
    """The sums of g * x_hat and, if CENTER, of g over whole rows: (rows, 1), or numbers in a cluster.

    Times 1 / n_cols, they are the means a and b of the formulas above.
    """
    sum_products = add_chunks(products)
    sum_g = add_chunks(g) if CENTER else tl.zeros_like(sum_products)
    if SETTINGS.SEND_PER_WARP:
        send_from_warps(slots, sum_products, sum_g, turn, SETTINGS.NUM_WARPS)
        return received_sums(slots, turn, SETTINGS.CLUSTER_SIZE * SETTINGS.NUM_WARPS)
    else:
        if CENTER:
            sum_products, sum_g = sum_both(sum_products, sum_g)
        else:
            sum_products = tl.sum(sum_products, axis=1, keep_dims=True)
            sum_g = tl.zeros_like(sum_products)
        if SETTINGS.CLUSTER_SIZE > 1:
            send(slots, tl.sum(sum_products), tl.sum(sum_g), turn)
            sum_products, sum_g = received_sums(slots, turn, SETTINGS.CLUSTER_SIZE)
        return sum_products, sum_g


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


@triton.jit
def _tile(
    rows,
    turn,
    inputs,
    outputs,
    parameters,
    residual_gate,
    sums,
    columns,
    share,
    slots,
    SPEC: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """Compute and store dx of a tile, and return the sums with this tile added. residual_gate: chunks."""
    n_cols = columns.n_cols
    mu, rstd = _load_statistics(inputs.statistics, rows, SPEC.CENTER, SETTINGS.SCALAR_STATISTICS)
    h, gate, dy, inside = _load_tile(inputs, rows, columns, SPEC, TILING, SETTINGS)
    if SPEC.GATE_FIRST:
        u = ()
        for c in tl.static_range(TILING.NUM_CHUNKS):
            u = u + (gate_h(h[c], gate, c, SPEC),)
        x_hat = x_hat_chunks(u, mu, rstd, inside, SPEC)
    else:
        x_hat = x_hat_chunks(h, mu, rstd, inside, SPEC)
    g, products, sums = _gradients(
        x_hat, gate, dy, inputs, outputs, parameters, rows, columns, sums, SPEC, TILING, SETTINGS
    )
    sum_products, sum_g = _row_sums(products, g, slots, turn, SPEC.CENTER, SETTINGS)

    # rstd * (g - b - a * x_hat), arranged so that each element takes as few instructions as possible.
    # share is 1 / n_cols: a = sum_products * share, b = sum_g * share.
    slope = -(sum_products * share) * rstd
    if SPEC.CENTER:  # A row of one column has a gradient of exactly 0: g is b.
        rstd *= (n_cols > 1).to(SPEC.COMPUTE_DTYPE)
    offset = -(sum_g * share) * rstd
    dpre_bias = ()
    dresidual_gate = ()
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, col_ok = chunk(columns, c, TILING)
        ok = rows.ok & col_ok
        offsets = rows.index * n_cols + cols
        dx = x_hat[c] * slope
        if SPEC.CENTER:
            dx += offset
        dx = tl.fma(g[c], tl.broadcast_to(rstd, g[c].shape), dx)
        if SPEC.GATE_FIRST:
            dx, dgate = gradient_before_gate(dx, h[c], gate, c, SPEC, SETTINGS.PRECISE)
            if outputs.dgate_ptr is not None:
                store_row(outputs.dgate_ptr + offsets, dgate, ok)
        if inputs.dh.ptr is not None:
            dx += _load_chunk(inputs.dh, rows, cols, ok, SPEC, SETTINGS)
        dresidual = dx
        if len(residual_gate) > 0:
            term = _load_chunk(inputs.x, rows, cols, ok, SPEC, SETTINGS)
            if len(inputs.pre_bias) > 0:
                term += widen(inputs.pre_bias[c], SPEC.COMPUTE_DTYPE)
            term *= dx
            dresidual_gate = dresidual_gate + (
                sums.dresidual_gate[c] + _rows_or_sum(term, SETTINGS.SUM_ROWS),
            )
            if outputs.dresidual_gate_ptr is not None:
                store_row(outputs.dresidual_gate_ptr + offsets, term, ok)
            dx = dx * widen(residual_gate[c], SPEC.COMPUTE_DTYPE)
        store_dx(outputs.dx_ptr, outputs.dresidual_ptr, offsets, dx, dresidual, ok)
        dpre_bias = dpre_bias + (sums.dpre_bias[c] + _rows_or_sum(dx, SETTINGS.SUM_ROWS),)
    return _Sums(dpre_bias, sums.dweight, sums.dbias, sums.dscale, sums.dshift, dresidual_gate)


@triton.jit
def _own_parameters(
    parameters,
    modulation,
    rows,
    columns,
    SPEC: tl.constexpr,
    TILING: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """(the parameters, the residual_gate) of a tile, where every row has its own samples: these are loaded with the
    row.
    """
    scale = ()
    shift = ()
    residual_gate = ()
    scales = Matrix(modulation.scale_ptr, modulation.scale_row_stride, 0)
    shifts = Matrix(modulation.shift_ptr, modulation.shift_row_stride, 0)
    gates = Matrix(modulation.residual_gate_ptr, modulation.residual_gate_row_stride, 0)
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, col_ok = chunk(columns, c, TILING)
        ok = rows.ok & col_ok
        if modulation.scale_ptr is not None:
            offset = row_offset(scales, rows.index, SETTINGS.DIVISIBILITY, 0)
            scale = scale + (load_pipelined(scales.ptr + offset + cols, ok, SPEC.COMPUTE_DTYPE),)
        if modulation.shift_ptr is not None:
            offset = row_offset(shifts, rows.index, SETTINGS.DIVISIBILITY, 0)
            shift = shift + (load_pipelined(shifts.ptr + offset + cols, ok, SPEC.COMPUTE_DTYPE),)
        if modulation.residual_gate_ptr is not None:
            offset = row_offset(gates, rows.index, SETTINGS.DIVISIBILITY, 0)
            loaded = load_pipelined(gates.ptr + offset + cols, ok, SPEC.COMPUTE_DTYPE)
            residual_gate = residual_gate + (loaded,)
    return Parameters(parameters.weight, parameters.bias, scale, shift), residual_gate


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def backward_resident(
    dy_ptr,
    dh_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    residual_gate_ptr,
    gate_ptr,
    x_ptr,  # None without a residual_gate
    mu_ptr,
    rstd_ptr,
    dx_ptr,
    dresidual_ptr,
    dgate_ptr,
    dpre_bias_partial_ptr,  # (programs or clusters, n_cols) partial sums
    dweight_partial_ptr,
    dbias_partial_ptr,
    dscale_partial_ptr,  # (spans, n_cols) partial sums
    dshift_partial_ptr,
    dresidual_gate_partial_ptr,
    dpre_bias_ptr,  # the sums themselves, stored by a single program or cluster
    dweight_ptr,
    dbias_ptr,
    dscale_ptr,  # the sums themselves, stored where a sample is one span
    dshift_ptr,
    dresidual_gate_ptr,
    dy_row_stride,
    dh_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    dy_group_gap,
    dh_group_gap,
    h_group_gap,
    scale_row_stride,  # this and what follows, up to spans_per_sample: None without samples
    shift_row_stride,
    rows_per_sample,
    n_samples,
    sample_rows,
    span_rows,
    spans_per_sample,
    residual_gate_row_stride,  # this and what follows: None where the tensor is absent
    gate_row_stride,
    gate_group_gap,
    x_row_stride,
    x_group_gap,
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
    OWN_SAMPLES: tl.constexpr,  # whether every row has its own samples
):
    """A program or cluster computes every n-th tile, or span of rows, n in all. Other constants: ``bundles.Tiling``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    # The chunks of one program are the fewest that cover the row. In a cluster the last program may have several chunks
    # beyond the row, so no chunk is known to be full.
    FULL_IF_UNEVEN: tl.constexpr = NUM_CHUNKS - 1 if CLUSTER_SIZE == 1 else 0
    TILING: tl.constexpr = Tiling(
        BLOCK_COLS, NUM_CHUNKS, FULL_CHUNKS=NUM_CHUNKS if EVEN_COLS else FULL_IF_UNEVEN
    )
    SETTINGS: tl.constexpr = _Settings(
        DIVISIBILITY,
        GROUP_ROWS,
        LOAD_DY_WITH_H,
        SUM_ROWS,
        CLUSTER_SIZE,
        SEND_PER_WARP,
        NUM_WARPS,
        is_precise(
            dx_ptr,
            dresidual_ptr,
            dgate_ptr,
            dpre_bias_ptr,
            dweight_ptr,
            dbias_ptr,
            dscale_ptr,
            dshift_ptr,
            dresidual_gate_ptr,
        ),
        LATENCY_HIDDEN,
        SCALAR_STATISTICS,
    )

    n_cols = n_cols * DIVISIBILITY
    share = 1.0 / tl.cast(n_cols, SPEC.COMPUTE_DTYPE)  # of a column in a mean
    slots = open_slots() if CLUSTER_SIZE > 1 else 0
    program = tl.program_id(0) // CLUSTER_SIZE  # or cluster
    step = tl.num_programs(0) // CLUSTER_SIZE
    first_col = (tl.program_id(0) % CLUSTER_SIZE) * (NUM_CHUNKS * BLOCK_COLS)
    row_lanes = tl.arange(0, BLOCK_ROWS)[:, None]
    columns = Columns(first_col + tl.arange(0, BLOCK_COLS)[None, :], n_cols)
    pre_bias = load_chunks(pre_bias_ptr, columns, 0, NUM_CHUNKS, TILING)
    parameter_pointers = ParameterPointers(weight_ptr, bias_ptr, None, None, 0, 0)
    parameters = load_parameter_chunks(parameter_pointers, columns, 0, NUM_CHUNKS, TILING)
    inputs = _Inputs(
        Matrix(dy_ptr, dy_row_stride, dy_group_gap),
        Matrix(dh_ptr, dh_row_stride, dh_group_gap),
        Matrix(h_ptr, h_row_stride, h_group_gap),
        Matrix(gate_ptr, gate_row_stride, gate_group_gap),
        Matrix(x_ptr, x_row_stride, x_group_gap),
        Statistics(mu_ptr, rstd_ptr),
        pre_bias,
    )
    modulation = Modulation(
        scale_ptr,
        shift_ptr,
        residual_gate_ptr,
        scale_row_stride,
        shift_row_stride,
        residual_gate_row_stride,
        rows_per_sample,
        n_samples,
    )
    SUM_SHAPE: tl.constexpr = 1 if SUM_ROWS else BLOCK_ROWS
    zeros = _zeros(SUM_SHAPE, TILING, SPEC.COMPUTE_DTYPE)
    dpre_bias = zeros
    dweight = zeros
    dbias = zeros
    if CLUSTER_SIZE > 1:
        wait_for_cluster()

    if rows_per_sample is None or OWN_SAMPLES:
        if OWN_SAMPLES:
            outputs = _Outputs(
                dx_ptr, dresidual_ptr, dgate_ptr, dscale_ptr, dshift_ptr, dresidual_gate_ptr
            )
        else:
            outputs = _Outputs(dx_ptr, dresidual_ptr, dgate_ptr, None, None, None)
        # Not cdiv, which adds first: near 2^31 rows the sum exceeds 32 bits.
        n_tiles = n_rows // BLOCK_ROWS + (n_rows % BLOCK_ROWS > 0).to(tl.int32)
        n_turns = tl.cdiv(n_tiles - program, step)
        for turn in tl.range(0, n_turns, num_stages=NUM_STAGES):
            tile = program + turn * step
            row_index = tl.cast(tile, tl.int64) * BLOCK_ROWS + row_lanes
            rows = _Rows(row_index, in_range(row_index, n_rows, BLOCK_ROWS == 1))
            if OWN_SAMPLES:
                of_tile, residual_gate = _own_parameters(
                    parameters, modulation, rows, columns, SPEC, TILING, SETTINGS
                )
            else:
                of_tile = parameters
                residual_gate = ()
            before = _Sums(dpre_bias, dweight, dbias, zeros, zeros, zeros)
            after = _tile(
                rows,
                turn,
                inputs,
                outputs,
                of_tile,
                residual_gate,
                before,
                columns,
                share,
                slots,
                SPEC,
                TILING,
                SETTINGS,
            )
            if dweight_partial_ptr is not None:
                dweight = after.dweight
            if dbias_partial_ptr is not None:
                dbias = after.dbias
            if dpre_bias_partial_ptr is not None:
                dpre_bias = after.dpre_bias
    else:
        outputs = _Outputs(dx_ptr, dresidual_ptr, dgate_ptr, None, None, None)
        spans = Spans(rows_per_sample, n_samples, sample_rows, span_rows, spans_per_sample)
        n_turns = 0  # of the spans before: the exchange in a cluster counts all
        for span in range(program, n_samples * spans_per_sample, step):
            sample, first, end = span_of(spans, span)
            scale_row, shift_row, gate_row = offsets_of_sample(sample, modulation, DIVISIBILITY)
            pointers = ParameterPointers(None, None, scale_ptr, shift_ptr, scale_row, shift_row)
            of_sample = load_parameter_chunks(pointers, columns, 0, NUM_CHUNKS, TILING)
            of_span = Parameters(
                parameters.weight, parameters.bias, of_sample.scale, of_sample.shift
            )
            residual_gate = load_chunks(residual_gate_ptr, columns, 0, NUM_CHUNKS, TILING, gate_row)
            dscale = zeros
            dshift = zeros
            dresidual_gate = zeros
            n_tiles = tl.cdiv(end - first, BLOCK_ROWS)
            for tile in tl.range(0, n_tiles, num_stages=NUM_STAGES):
                number = first + tile * BLOCK_ROWS + row_lanes
                rows = _Rows(
                    row_of_sample(spans, sample, number), in_range(number, end, BLOCK_ROWS == 1)
                )
                before = _Sums(dpre_bias, dweight, dbias, dscale, dshift, dresidual_gate)
                after = _tile(
                    rows,
                    n_turns + tile,
                    inputs,
                    outputs,
                    of_span,
                    residual_gate,
                    before,
                    columns,
                    share,
                    slots,
                    SPEC,
                    TILING,
                    SETTINGS,
                )
                if dweight_partial_ptr is not None:
                    dweight = after.dweight
                if dbias_partial_ptr is not None:
                    dbias = after.dbias
                if dpre_bias_partial_ptr is not None:
                    dpre_bias = after.dpre_bias
                if dscale_partial_ptr is not None:
                    dscale = after.dscale
                if dshift_partial_ptr is not None:
                    dshift = after.dshift
                if dresidual_gate_partial_ptr is not None:
                    dresidual_gate = after.dresidual_gate
            n_turns += n_tiles
            final = tl.cast(sample, tl.int64) * n_cols
            if dscale_partial_ptr is not None:
                dscale_out = SumPointers(dscale_partial_ptr, dscale_ptr + final)
                _store_sums(dscale_out, dscale, span, spans_per_sample, columns, TILING)
            if dshift_partial_ptr is not None:
                dshift_out = SumPointers(dshift_partial_ptr, dshift_ptr + final)
                _store_sums(dshift_out, dshift, span, spans_per_sample, columns, TILING)
            if dresidual_gate_partial_ptr is not None:
                gate_out = SumPointers(dresidual_gate_partial_ptr, dresidual_gate_ptr + final)
                _store_sums(gate_out, dresidual_gate, span, spans_per_sample, columns, TILING)

    dpre_bias_out = SumPointers(dpre_bias_partial_ptr, dpre_bias_ptr)
    dweight_out = SumPointers(dweight_partial_ptr, dweight_ptr)
    dbias_out = SumPointers(dbias_partial_ptr, dbias_ptr)
    _store_sums(dpre_bias_out, dpre_bias, program, step, columns, TILING)
    _store_sums(dweight_out, dweight, program, step, columns, TILING)
    _store_sums(dbias_out, dbias, program, step, columns, TILING)
