"""Forward where a program has whole rows in registers (regimes tile and resident): one load, one store.

    h    = [residual_gate *] (x [+ pre_bias]) [+ residual]
    u    = h [* gate_activation(gate), if GATE_FIRST]
    mu   = mean(u) if CENTER else 0
    rstd = 1 / sqrt(mean((u - mu)^2) + EPS)
    z    = (u - mu) * rstd * (weight + WEIGHT_SHIFT) + bias
    y    = activation(z * (scale + SCALE_SHIFT) + shift) [* gate_activation(gate), unless GATE_FIRST]

In registers: u of BLOCK_ROWS rows, in fp32 (fp64 where a row is fp64). Each result is rounded once, when it is stored;
x_hat is rounded too where ROUND_X_HAT_TO names a dtype.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..activations import activate, is_precise
from ..affine import (
    affine,
    fused_x_hat,
    gate_h,
    gate_y,
    mean_below_4_std,
    modulate,
    round_x_hat,
)
from ..bundles import (
    FORWARD_INTEGERS,
    Columns,
    Matrix,
    Modulation,
    Outputs,
    ParameterPointers,
    Source,
    Statistics,
    Tiling,
    spec_of,
)
from ..memory import (
    chunk,
    in_range,
    load_gate,
    load_h,
    load_parameter_chunks,
    load_parameters,
    offsets_of_row,
    optional_row_offset,
    round_to,
    row_offset,
    store_row,
    store_statistics,
)
from ..moments import all_rows, moments, moments_of_16_bit_rows, stored_h_moments


@triton.jit
def _load_h(source, cols, col_ok, ok, SPEC: tl.constexpr):
    return load_h(source, cols, col_ok, ok, SPEC.COMPUTE_DTYPE, "evict_last", SPEC.ROUND_EACH_TO)


@triton.jit
def _load_rows(source, row_ok, columns, SPEC: tl.constexpr, TILING: tl.constexpr):
    """(h, the gate, which columns exist) in chunks. The gate is in its dtype; an empty tuple where there is none."""
    h = ()
    gate = ()
    inside = ()
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, col_ok = chunk(columns, c, TILING)
        inside = inside + (col_ok,)
        ok = row_ok & col_ok
        h = h + (_load_h(source, cols, col_ok, ok, SPEC),)
        gate = gate + load_gate(source, cols, ok, "evict_last")
    return h, gate, inside


@triton.jit
def _store_h(outputs, h, row_ok, columns, TILING: tl.constexpr, EVICT_FIRST: tl.constexpr):
    """Store h in chunks."""
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, col_ok = chunk(columns, c, TILING)
        store_row(outputs.h_ptr + outputs.row + cols, h[c], row_ok & col_ok, EVICT_FIRST)


@triton.jit
def _gated(h, gate, ROUND_TO: tl.constexpr, SPEC: tl.constexpr):
    """``u`` in chunks: h, rounded to ROUND_TO unless that is None, multiplied with the gate if GATE_FIRST."""
    u = ()
    for c in tl.static_range(len(h)):
        u = u + (gate_h(round_to(h[c], ROUND_TO, SPEC.COMPUTE_DTYPE), gate, c, SPEC),)
    return u


@triton.jit
def _x_hat(h, mu, rstd, SPEC: tl.constexpr, CAN_FUSE_ALL: tl.constexpr):
    """``(h - mu) * rstd``, fused for rows with ``mean_below_4_std`` if there is an activation: one instruction less for
    every element. Without an activation the kernel waits for memory, and the instruction costs nothing.

    CAN_FUSE_ALL: whether this is known of all rows of the tile, so that no row needs the other expression.
    """
    if CAN_FUSE_ALL:
        x_hat = fused_x_hat(h, mu, rstd)
    else:
        x_hat = (h - mu if SPEC.CENTER else h) * rstd
        if SPEC.CENTER and SPEC.ACTIVATION is not None:
            x_hat = tl.where(mean_below_4_std(mu, rstd), fused_x_hat(h, mu, rstd), x_hat)
    return x_hat


class _Tile(NamedTuple):
    """A program's rows when their statistics are known."""

    h: Any  # chunks of u
    gate: Any  # chunks, an empty tuple where there is none
    mu: Any  # (rows, 1)
    rstd: Any
    parameters: Any  # chunks, if they were prefetched
    parameter_pointers: Any
    row_ok: Any  # which rows exist, (rows, 1)


@triton.jit
def _store_y(
    tile,
    outputs,
    columns,
    SPEC: tl.constexpr,
    TILING: tl.constexpr,
    PREFETCH_PARAMETERS: tl.constexpr,
    EVICT_FIRST: tl.constexpr,
    CAN_FUSE_ALL: tl.constexpr,
):
    """Normalize the rows of a tile and store y. CAN_FUSE_ALL: see ``_x_hat``."""
    for c in tl.static_range(TILING.NUM_CHUNKS):
        cols, col_ok = chunk(columns, c, TILING)
        x_hat = _x_hat(tile.h[c], tile.mu, tile.rstd, SPEC, CAN_FUSE_ALL)
        if PREFETCH_PARAMETERS:
            z = affine(round_x_hat(x_hat, SPEC), tile.parameters, c, SPEC)
            z = modulate(z, tile.parameters, c, SPEC)
            y = activate(z, SPEC.ACTIVATION, is_precise(outputs.y_ptr))
            y = gate_y(y, tile.gate, tile.parameters, c, c, SPEC)
        else:
            # Loaded late: until the statistics are known, parameters would take registers from the rows in flight.
            parameters = load_parameters(tile.parameter_pointers, cols, col_ok)
            z = affine(round_x_hat(x_hat, SPEC), parameters, 0, SPEC)
            z = modulate(z, parameters, 0, SPEC)
            y = activate(z, SPEC.ACTIVATION, is_precise(outputs.y_ptr))
            y = gate_y(y, tile.gate, parameters, c, 0, SPEC)
        store_row(outputs.y_ptr + outputs.row + cols, y, tile.row_ok & col_ok, EVICT_FIRST)


class _Tensors(NamedTuple):
    """All rows of a call, and its parameters."""

    x: Any  # a ``Matrix``, as residual and gate
    residual: Any
    gate: Any
    modulation: Any
    pre_bias_ptr: Any
    weight_ptr: Any
    bias_ptr: Any
    y_ptr: Any
    h_ptr: Any
    statistics: Any


class _How(NamedTuple):
    """Constants of the kernel, see there."""

    DIVISIBILITY: Any
    GROUP_ROWS: Any
    BLOCK_ROWS: Any
    PREFETCH_PARAMETERS: Any
    EVICT_FIRST: Any
    FAST_RSTD: Any


@triton.jit
def _compute_rows(
    first, tensors, n_rows, n_cols, SPEC: tl.constexpr, TILING: tl.constexpr, HOW: tl.constexpr
):
    """Compute BLOCK_ROWS rows from ``first`` on."""
    rows = first + tl.arange(0, HOW.BLOCK_ROWS)[:, None]
    row_ok = in_range(rows, n_rows, HOW.BLOCK_ROWS == 1)
    columns = Columns(tl.arange(0, TILING.BLOCK_COLS)[None, :], n_cols)
    modulation = tensors.modulation
    scale_row, shift_row, residual_gate_row = offsets_of_row(rows, modulation, HOW.DIVISIBILITY)
    source = Source(
        tensors.x.ptr,
        tensors.residual.ptr,
        tensors.pre_bias_ptr,
        modulation.residual_gate_ptr,
        tensors.gate.ptr,
        row_offset(tensors.x, rows, HOW.DIVISIBILITY, HOW.GROUP_ROWS),
        row_offset(tensors.residual, rows, HOW.DIVISIBILITY, HOW.GROUP_ROWS),
        residual_gate_row,
        optional_row_offset(tensors.gate, rows, HOW.DIVISIBILITY, HOW.GROUP_ROWS),
    )
    parameter_pointers = ParameterPointers(
        tensors.weight_ptr,
        tensors.bias_ptr,
        modulation.scale_ptr,
        modulation.shift_ptr,
        scale_row,
        shift_row,
    )
    outputs = Outputs(tensors.y_ptr, tensors.h_ptr, rows * n_cols)

    h, gate, inside = _load_rows(source, row_ok, columns, SPEC, TILING)
    FETCHED: tl.constexpr = TILING.NUM_CHUNKS if HOW.PREFETCH_PARAMETERS else 0
    parameters = load_parameter_chunks(parameter_pointers, columns, 0, FETCHED, TILING)
    if tensors.h_ptr is not None:  # After all loads, because loads are not moved above a store.
        _store_h(outputs, h, row_ok, columns, TILING, HOW.EVICT_FIRST)
    stored = ()  # u of the h that is stored, where its rounding can change mu and rstd
    if SPEC.GATE_FIRST:
        if SPEC.STORED_H_DTYPE is not None and tensors.statistics.mu_ptr is not None:
            stored = _gated(h, gate, SPEC.STORED_H_DTYPE, SPEC)
        h = _gated(h, gate, None, SPEC)
    FEW_BITS: tl.constexpr = (
        tensors.x.ptr.dtype.element_ty.primitive_bitwidth == 16
        and tensors.residual.ptr is None
        and tensors.pre_bias_ptr is None
        and not SPEC.GATE_FIRST
        and TILING.BLOCK_COLS * TILING.NUM_CHUNKS <= 1024
    )
    if SPEC.CENTER and FEW_BITS and HOW.BLOCK_ROWS > 1:
        mu, rstd = moments_of_16_bit_rows(h, inside, n_cols, SPEC, HOW.FAST_RSTD)
    else:
        mu, rstd = moments(h, inside, n_cols, SPEC, HOW.FAST_RSTD)
    stored_mu, stored_rstd = mu, rstd
    if SPEC.STORED_H_DTYPE is not None and tensors.statistics.mu_ptr is not None:
        stored_mu, stored_rstd = stored_h_moments(
            h, stored, inside, mu, rstd, n_cols, SPEC, HOW.FAST_RSTD
        )

    tile = _Tile(h, gate, mu, rstd, parameters, parameter_pointers, row_ok)
    FUSE: tl.constexpr = SPEC.CENTER and SPEC.ACTIVATION is not None
    # FUSE is a compile-time guard around a run-time branch. As two nested ifs the else branch would be repeated.
    if all_rows(mean_below_4_std(mu, rstd)) if FUSE else False:
        _store_y(
            tile, outputs, columns, SPEC, TILING, HOW.PREFETCH_PARAMETERS, HOW.EVICT_FIRST, True
        )
    else:
        _store_y(
            tile, outputs, columns, SPEC, TILING, HOW.PREFETCH_PARAMETERS, HOW.EVICT_FIRST, False
        )
    store_statistics(tensors.statistics, rows, stored_mu, stored_rstd, row_ok)


@triton.jit(do_not_specialize=FORWARD_INTEGERS)
def forward_resident(
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    residual_gate_ptr,
    gate_ptr,
    y_ptr,
    h_ptr,
    mu_ptr,  # None: the statistics are not wanted
    rstd_ptr,
    x_row_stride,
    residual_row_stride,
    n_rows,
    n_cols,
    x_group_gap,
    residual_group_gap,
    scale_row_stride,
    shift_row_stride,
    rows_per_sample,
    n_samples,
    residual_gate_row_stride,
    gate_row_stride,
    gate_group_gap,
    rows_per_program,  # None without samples: a program has one tile of rows
    DIVISIBILITY: tl.constexpr,  # of strides, gaps and n_cols, which are passed divided by it: see ``bundles``
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_ROWS: tl.constexpr,  # rows of a program, a power of two
    BLOCK_COLS: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    EVEN_COLS: tl.constexpr,  # whether n_cols is a multiple of BLOCK_COLS
    PREFETCH_PARAMETERS: tl.constexpr,  # load weight and bias with the rows, not after the statistics
    NUM_STAGES: tl.constexpr,  # with samples: tiles of rows in flight
    EVICT_FIRST: tl.constexpr,  # results leave L2 first: see memory.store_row
    FAST_RSTD: tl.constexpr,  # rstd without subroutines: see moments.inverse_std
):
    """A program computes BLOCK_ROWS rows; with samples, rows_per_program rows, BLOCK_ROWS at a time.

    Rows of one sample share scale and shift, which are in L1 from the second tile of rows on. Constants without a
    comment are those of ``bundles.Tiling``.
    """
    SPEC: tl.constexpr = spec_of(PROGRAM)
    # Here the chunks are the fewest that cover the row, so only the last one can reach beyond it.
    TILING: tl.constexpr = Tiling(
        BLOCK_COLS, NUM_CHUNKS, FULL_CHUNKS=NUM_CHUNKS if EVEN_COLS else NUM_CHUNKS - 1
    )
    n_cols = n_cols * DIVISIBILITY
    tensors = _Tensors(
        Matrix(x_ptr, x_row_stride, x_group_gap),
        Matrix(residual_ptr, residual_row_stride, residual_group_gap),
        Matrix(gate_ptr, gate_row_stride, gate_group_gap),
        Modulation(
            scale_ptr,
            shift_ptr,
            residual_gate_ptr,
            scale_row_stride,
            shift_row_stride,
            residual_gate_row_stride,
            rows_per_sample,
            n_samples,
        ),
        pre_bias_ptr,
        weight_ptr,
        bias_ptr,
        y_ptr,
        h_ptr,
        Statistics(mu_ptr, rstd_ptr),
    )
    HOW: tl.constexpr = _How(
        DIVISIBILITY, GROUP_ROWS, BLOCK_ROWS, PREFETCH_PARAMETERS, EVICT_FIRST, FAST_RSTD
    )
    program = tl.program_id(0).to(tl.int64)
    if rows_per_program is not None:
        first = program * rows_per_program
        end = tl.minimum(first + rows_per_program, n_rows)
        for row in tl.range(first, end, BLOCK_ROWS, num_stages=NUM_STAGES):
            _compute_rows(row, tensors, n_rows, n_cols, SPEC, TILING, HOW)
    else:
        _compute_rows(program * BLOCK_ROWS, tensors, n_rows, n_cols, SPEC, TILING, HOW)
