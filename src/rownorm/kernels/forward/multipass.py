"""Forward where no program has a whole row in registers: rows are loaded for the statistics, then again for y.

    h    = [residual_gate *] (x [+ pre_bias]) [+ residual]
    u    = h [* gate_activation(gate), if GATE_FIRST]
    mu   = mean(u) if CENTER else 0
    rstd = 1 / sqrt(mean((u - mu)^2) + EPS)
    z    = (u - mu) * rstd * (weight + WEIGHT_SHIFT) + bias
    y    = activation(z * (scale + SCALE_SHIFT) + shift) [* gate_activation(gate), unless GATE_FIRST]

    forward_looped    regime looped: one program, one row; the second load usually comes from the cache
    forward_moments   regime split, first kernel: mean and m2 = sum((u - mean)^2) of one part of a row
    forward_apply     regime split, second kernel: merges the parts in a fixed order, stores y of one part

In registers: one chunk of BLOCK_COLS columns. A part is ``part_blocks`` chunks.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..bundles import (
    FORWARD_INTEGERS,
    Chunking,
    ColumnRange,
    Matrix,
    Modulation,
    Outputs,
    ParameterPointers,
    Source,
    Statistics,
    spec_of,
)
from ..memory import offsets_of_row, optional_row_offset, row_offset, store_statistics
from ..moments import inverse_std
from .column_range import apply_range, range_moments, stored_range_moments


@triton.jit(do_not_specialize=FORWARD_INTEGERS)
def forward_looped(
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
    DIVISIBILITY: tl.constexpr,  # of strides, gaps and n_cols, which are passed divided by it: see ``bundles``
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,  # whether n_cols is a multiple of BLOCK_COLS
    NUM_CHUNKS: tl.constexpr,  # of a row, if few: the compiler unrolls the loops. 0: not a constant
    EVICT_FIRST: tl.constexpr,  # results leave L2 first: see memory.store_row
):
    """A program computes one row. Constants without a comment are those of ``bundles.Tiling``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    CHUNKING: tl.constexpr = Chunking(BLOCK_COLS, EVEN_COLS)
    n_cols = NUM_CHUNKS * BLOCK_COLS if NUM_CHUNKS else n_cols * DIVISIBILITY
    row = tl.program_id(0).to(tl.int64)
    x_rows = Matrix(x_ptr, x_row_stride, x_group_gap)
    residual_rows = Matrix(residual_ptr, residual_row_stride, residual_group_gap)
    x_row = row_offset(x_rows, row, DIVISIBILITY, GROUP_ROWS)
    residual_row = row_offset(residual_rows, row, DIVISIBILITY, GROUP_ROWS)
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
    scale_row, shift_row, residual_gate_row = offsets_of_row(row, modulation, DIVISIBILITY)
    gate_rows = Matrix(gate_ptr, gate_row_stride, gate_group_gap)
    source = Source(
        x_ptr,
        residual_ptr,
        pre_bias_ptr,
        residual_gate_ptr,
        gate_ptr,
        x_row,
        residual_row,
        residual_gate_row,
        optional_row_offset(gate_rows, row, DIVISIBILITY, GROUP_ROWS),
    )
    columns = ColumnRange(0, n_cols)
    parameter_pointers = ParameterPointers(
        weight_ptr, bias_ptr, scale_ptr, shift_ptr, scale_row, shift_row
    )

    mu, m2 = range_moments(source, columns, SPEC, CHUNKING)
    n = tl.cast(n_cols, SPEC.COMPUTE_DTYPE)
    rstd = inverse_std(m2, n, SPEC)
    stored_mu, stored_rstd = mu, rstd
    if SPEC.STORED_H_DTYPE is not None and mu_ptr is not None:
        stored_mu, m2 = stored_range_moments(mu, m2, source, columns, SPEC, CHUNKING)
        stored_rstd = inverse_std(m2, n, SPEC)

    row_tile = row + tl.zeros((1, 1), tl.int64)
    store_statistics(Statistics(mu_ptr, rstd_ptr), row_tile, stored_mu, stored_rstd, None)
    outputs = Outputs(y_ptr, h_ptr, row * n_cols)
    apply_range(source, columns, parameter_pointers, outputs, mu, rstd, SPEC, CHUNKING, EVICT_FIRST)


@triton.jit(do_not_specialize=FORWARD_INTEGERS)
def forward_moments(
    x_ptr,
    residual_ptr,
    pre_bias_ptr,
    residual_gate_ptr,
    gate_ptr,
    parts_ptr,  # (2, n_rows, n_parts): means, then m2
    stored_h_parts_ptr,  # the same of h as it is stored, or None
    x_row_stride,
    residual_row_stride,
    n_rows,
    n_cols,
    n_parts,
    part_blocks,
    x_group_gap,
    residual_group_gap,
    rows_per_sample,
    n_samples,
    residual_gate_row_stride,
    gate_row_stride,
    gate_group_gap,
    DIVISIBILITY: tl.constexpr,
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
):
    """A program computes mean and m2 of one part of one row. Constants as in ``forward_looped``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    CHUNKING: tl.constexpr = Chunking(BLOCK_COLS, EVEN_COLS)
    pid = tl.program_id(0).to(tl.int64)
    row = pid // n_parts
    start = (pid % n_parts).to(tl.int32) * part_blocks * BLOCK_COLS
    end = tl.minimum(start + part_blocks * BLOCK_COLS, n_cols * DIVISIBILITY)
    columns = ColumnRange(start, end)
    x_rows = Matrix(x_ptr, x_row_stride, x_group_gap)
    residual_rows = Matrix(residual_ptr, residual_row_stride, residual_group_gap)
    x_row = row_offset(x_rows, row, DIVISIBILITY, GROUP_ROWS)
    residual_row = row_offset(residual_rows, row, DIVISIBILITY, GROUP_ROWS)
    modulation = Modulation(
        None, None, residual_gate_ptr, 0, 0, residual_gate_row_stride, rows_per_sample, n_samples
    )
    _, _, residual_gate_row = offsets_of_row(row, modulation, DIVISIBILITY)
    gate_rows = Matrix(gate_ptr, gate_row_stride, gate_group_gap)
    source = Source(
        x_ptr,
        residual_ptr,
        pre_bias_ptr,
        residual_gate_ptr,
        gate_ptr,
        x_row,
        residual_row,
        residual_gate_row,
        optional_row_offset(gate_rows, row, DIVISIBILITY, GROUP_ROWS),
    )

    mean, m2 = range_moments(source, columns, SPEC, CHUNKING)
    slot = pid + tl.zeros((1, 1), tl.int64)
    n_slots = tl.cast(n_rows, tl.int64) * n_parts
    tl.store(parts_ptr + slot, mean)
    tl.store(parts_ptr + slot + n_slots, m2)
    if stored_h_parts_ptr is not None:
        mean, m2 = stored_range_moments(mean, m2, source, columns, SPEC, CHUNKING)
        tl.store(stored_h_parts_ptr + slot, mean)
        tl.store(stored_h_parts_ptr + slot + n_slots, m2)


class _Split(NamedTuple):
    """A row and its parts."""

    row: Any
    n_rows: Any
    n_cols: Any
    n_parts: Any
    part_cols: Any  # columns of each part but the last


@triton.jit
def _merge_parts(parts_ptr, split, SPEC: tl.constexpr, BLOCK_PARTS: tl.constexpr):
    """(mu, rstd) of a row, (1, 1) each, from mean and m2 of its parts."""
    parts = tl.arange(0, BLOCK_PARTS)[None, :]
    part_ok = parts < split.n_parts
    slots = parts_ptr + split.row * split.n_parts + parts
    m2 = tl.load(slots + tl.cast(split.n_rows, tl.int64) * split.n_parts, mask=part_ok, other=0.0)
    n = tl.cast(split.n_cols, SPEC.COMPUTE_DTYPE)
    if SPEC.CENTER:
        mean = tl.load(slots, mask=part_ok, other=0.0)
        count = tl.minimum(split.part_cols, split.n_cols - parts * split.part_cols)
        count = tl.where(part_ok, count, 0).to(SPEC.COMPUTE_DTYPE)
        origin = tl.load(parts_ptr + split.row * split.n_parts + tl.zeros((1, 1), tl.int64))
        shift = tl.where(part_ok, mean - origin, 0.0)
        drift = tl.sum(shift * (count / n), axis=1, keep_dims=True)  # shift * count could overflow
        m2 += count * (shift - drift) * (shift - drift)
        mu = origin + drift
    else:
        mu = tl.zeros((1, 1), SPEC.COMPUTE_DTYPE)
    return mu, inverse_std(tl.sum(m2, axis=1, keep_dims=True), n, SPEC)


@triton.jit(do_not_specialize=FORWARD_INTEGERS)
def forward_apply(
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
    mu_ptr,
    rstd_ptr,
    parts_ptr,  # from forward_moments
    stored_h_parts_ptr,
    x_row_stride,
    residual_row_stride,
    n_rows,
    n_cols,
    n_parts,
    part_blocks,
    x_group_gap,
    residual_group_gap,
    scale_row_stride,
    shift_row_stride,
    rows_per_sample,
    n_samples,
    residual_gate_row_stride,
    gate_row_stride,
    gate_group_gap,
    DIVISIBILITY: tl.constexpr,
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,
    EVEN_COLS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,  # a power of two, at least n_parts
    EVICT_FIRST: tl.constexpr,
):
    """A program stores y of one part of one row. Constants as in ``forward_looped``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    CHUNKING: tl.constexpr = Chunking(BLOCK_COLS, EVEN_COLS)
    n_cols = n_cols * DIVISIBILITY
    pid = tl.program_id(0).to(tl.int64)
    row = pid // n_parts
    part = (pid % n_parts).to(tl.int32)
    part_cols = part_blocks * BLOCK_COLS
    start = part * part_cols
    columns = ColumnRange(start, tl.minimum(start + part_cols, n_cols))
    x_rows = Matrix(x_ptr, x_row_stride, x_group_gap)
    residual_rows = Matrix(residual_ptr, residual_row_stride, residual_group_gap)
    x_row = row_offset(x_rows, row, DIVISIBILITY, GROUP_ROWS)
    residual_row = row_offset(residual_rows, row, DIVISIBILITY, GROUP_ROWS)
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
    scale_row, shift_row, residual_gate_row = offsets_of_row(row, modulation, DIVISIBILITY)
    gate_rows = Matrix(gate_ptr, gate_row_stride, gate_group_gap)
    source = Source(
        x_ptr,
        residual_ptr,
        pre_bias_ptr,
        residual_gate_ptr,
        gate_ptr,
        x_row,
        residual_row,
        residual_gate_row,
        optional_row_offset(gate_rows, row, DIVISIBILITY, GROUP_ROWS),
    )
    parameter_pointers = ParameterPointers(
        weight_ptr, bias_ptr, scale_ptr, shift_ptr, scale_row, shift_row
    )

    split = _Split(row, n_rows, n_cols, n_parts, part_cols)
    mu, rstd = _merge_parts(parts_ptr, split, SPEC, BLOCK_PARTS)
    stored_mu, stored_rstd = mu, rstd
    if stored_h_parts_ptr is not None:
        stored_mu, stored_rstd = _merge_parts(stored_h_parts_ptr, split, SPEC, BLOCK_PARTS)

    row_tile = row + tl.zeros((1, 1), tl.int64)
    first_part = part + tl.zeros((1, 1), tl.int32) == 0
    store_statistics(Statistics(mu_ptr, rstd_ptr), row_tile, stored_mu, stored_rstd, first_part)
    outputs = Outputs(y_ptr, h_ptr, row * n_cols)
    apply_range(source, columns, parameter_pointers, outputs, mu, rstd, SPEC, CHUNKING, EVICT_FIRST)
