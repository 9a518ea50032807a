"""Backward where no program has a whole row in registers: h and dy are loaded for a and b, then again for dx.

    x_hat = (u - mu) * rstd                       dm = dy * activation'(m),  m = z * (scale + SCALE_SHIFT) + shift
    dz    = dm * (scale + SCALE_SHIFT)            g  = dz * (weight + WEIGHT_SHIFT)
    a     = mean(g * x_hat)                       b  = mean(g) if CENTER else 0
    dx    = rstd * (g - b - a * x_hat) [+ dh]     u, a gate and a residual_gate: see ``gradient``
    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx
    dscale  = sum over the rows of a sample of dm * z,  dshift = sum of dm

    backward_sums    first kernel: sums of g * x_hat and of g over one part of a row
    backward_apply   second kernel: dx of one block of columns over many rows, and the sums over these rows

Regimes looped (one part per row) and split (several). In registers: one chunk of BLOCK_COLS columns, and the sums over
rows of these columns. A part is ``part_blocks`` chunks. With scale and shift, ``backward_apply`` computes one span of
the rows of a sample after the other: see ``column_sums``.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..activations import is_precise
from ..affine import gate_h
from ..bundles import BACKWARD_INTEGERS, Matrix, Modulation, ParameterPointers, Parameters, spec_of
from ..gradient import gradient_before_affine, gradient_before_gate, store_dx
from ..memory import (
    load_parameter,
    load_parameters,
    offsets_of_row,
    offsets_of_sample,
    round_to,
    row_offset,
    store_row,
    widen,
)
from .column_sums import Spans, SumPointers, row_of_sample, span_of, store_column_sums


@triton.jit
def _load(pointers, ok, COMPUTE_DTYPE: tl.constexpr):
    """A part of a row, (1, BLOCK_COLS); 0 where ``ok`` is false."""
    return widen(tl.load(pointers, mask=ok, other=0.0), COMPUTE_DTYPE)


@triton.jit
def _load_gate(gate, row, cols, ok, SPEC: tl.constexpr, SETTINGS: tl.constexpr):
    """A tuple of one part of a row of the gate, a ``Matrix``; an empty tuple where there is none."""
    tile = ()
    if gate.ptr is not None:
        offset = row_offset(gate, row, SETTINGS.DIVISIBILITY, SETTINGS.GROUP_ROWS)
        tile = (_load(gate.ptr + offset + cols, ok, SPEC.COMPUTE_DTYPE),)
    return tile


class _Settings(NamedTuple):
    """Constants: the kernels' signatures explain them."""

    DIVISIBILITY: Any
    GROUP_ROWS: Any
    BLOCK_PARTS: Any
    PRECISE: Any  # results of more than 16 bits: see activations


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def backward_sums(
    dy_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    residual_gate_ptr,
    gate_ptr,
    mu_ptr,
    rstd_ptr,
    parts_ptr,  # (2, n_rows, n_parts): sums of g * x_hat, then of g
    dy_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    n_parts,
    part_blocks,
    dy_group_gap,
    h_group_gap,
    scale_row_stride,
    shift_row_stride,
    rows_per_sample,
    n_samples,
    gate_row_stride,
    gate_group_gap,
    DIVISIBILITY: tl.constexpr,  # of strides, gaps and n_cols, which are passed divided by it: see ``bundles``
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    WIDE_ROWS: tl.constexpr,  # whether dy or dx has more than 16 bits
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,
):
    """A program computes both sums of one part of one row. Constants without a comment: see ``bundles``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    # The dtypes of these tensors are those of their gradients.
    PRECISE: tl.constexpr = WIDE_ROWS or is_precise(
        h_ptr,
        pre_bias_ptr,
        weight_ptr,
        bias_ptr,
        scale_ptr,
        shift_ptr,
        residual_gate_ptr,
        gate_ptr,
    )
    SETTINGS: tl.constexpr = _Settings(DIVISIBILITY, GROUP_ROWS, 1, PRECISE)
    pid = tl.program_id(0).to(tl.int64)
    row = pid // n_parts
    first_col = (pid % n_parts).to(tl.int32) * part_blocks * BLOCK_COLS
    end_col = tl.minimum(first_col + part_blocks * BLOCK_COLS, n_cols * DIVISIBILITY)
    h_rows = Matrix(h_ptr, h_row_stride, h_group_gap)
    dy_rows = Matrix(dy_ptr, dy_row_stride, dy_group_gap)
    h_row = row_offset(h_rows, row, DIVISIBILITY, GROUP_ROWS)
    dy_row = row_offset(dy_rows, row, DIVISIBILITY, GROUP_ROWS)
    modulation = Modulation(
        scale_ptr,
        shift_ptr,
        None,  # h has what a residual_gate does
        scale_row_stride,
        shift_row_stride,
        None,
        rows_per_sample,
        n_samples,
    )
    # Not "_", which the loop below assigns a tensor to.
    scale_row, shift_row, _no_gate_row = offsets_of_row(row, modulation, DIVISIBILITY)
    gate_rows = Matrix(gate_ptr, gate_row_stride, gate_group_gap)
    parameter_pointers = ParameterPointers(
        weight_ptr, bias_ptr, scale_ptr, shift_ptr, scale_row, shift_row
    )
    rstd = tl.load(rstd_ptr + row)
    mu = tl.load(mu_ptr + row) if SPEC.CENTER else tl.zeros_like(rstd)

    lanes = tl.arange(0, BLOCK_COLS)[None, :]
    sum_gx = tl.zeros((1, BLOCK_COLS), SPEC.COMPUTE_DTYPE)
    sum_g = tl.zeros((1, BLOCK_COLS), SPEC.COMPUTE_DTYPE)
    for start in range(first_col, end_col, BLOCK_COLS):
        cols = start + lanes
        ok = cols < end_col
        pre_bias = load_parameter(pre_bias_ptr, cols, ok)
        parameters = load_parameters(parameter_pointers, cols, ok)
        h = _load(h_ptr + h_row + cols, ok, SPEC.COMPUTE_DTYPE)
        if len(pre_bias) > 0 and residual_gate_ptr is None:
            h += widen(pre_bias[0], SPEC.COMPUTE_DTYPE)
            h = round_to(h, SPEC.ROUND_EACH_TO, SPEC.COMPUTE_DTYPE)
        gate = _load_gate(gate_rows, row, cols, ok, SPEC, SETTINGS)
        h = gate_h(h, gate, 0, SPEC)
        dy = _load(dy_ptr + dy_row + cols, ok, SPEC.COMPUTE_DTYPE)
        x_hat = (tl.where(ok, h - mu, 0.0) if SPEC.CENTER else h) * rstd
        _, _, g, _, _, _ = gradient_before_affine(dy, x_hat, gate, parameters, 0, SPEC, PRECISE)
        sum_gx += g * x_hat
        sum_g += g

    slot = parts_ptr + pid + tl.zeros((1, 1), tl.int64)
    tl.store(slot, tl.sum(sum_gx, axis=1, keep_dims=True))
    if SPEC.CENTER:
        offset = tl.cast(n_rows, tl.int64) * n_parts
        tl.store(slot + offset, tl.sum(sum_g, axis=1, keep_dims=True))


class _Rows(NamedTuple):
    """What is loaded of every row, and its results. Tensors that are absent or not wanted have the pointer None."""

    dy: Any  # a ``Matrix``
    dh: Any
    h: Any
    gate: Any
    x: Any  # absent without a residual_gate
    mu_ptr: Any
    rstd_ptr: Any
    parts_ptr: Any  # from backward_sums
    dx_ptr: Any
    dresidual_ptr: Any
    dgate_ptr: Any
    n_rows: Any
    n_cols: Any
    n_parts: Any


@triton.jit
def _store_row_dx(
    rows,
    row,
    pre_bias,
    parameters,
    residual_gate,
    cols,
    ok,
    SPEC: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    """Store dx of some columns of a row. Returns what the row adds to dpre_bias, dweight, dbias, dscale, dshift and
    dresidual_gate.
    """
    n = tl.cast(rows.n_cols, SPEC.COMPUTE_DTYPE)
    parts = tl.arange(0, SETTINGS.BLOCK_PARTS)[None, :]
    part_ok = parts < rows.n_parts
    sums_of_g = tl.cast(rows.n_rows, tl.int64) * rows.n_parts
    h_row = row_offset(rows.h, row, SETTINGS.DIVISIBILITY, SETTINGS.GROUP_ROWS)
    h = _load(rows.h.ptr + h_row + cols, ok, SPEC.COMPUTE_DTYPE)
    if len(pre_bias) > 0 and rows.x.ptr is None:
        h += widen(pre_bias[0], SPEC.COMPUTE_DTYPE)
        h = round_to(h, SPEC.ROUND_EACH_TO, SPEC.COMPUTE_DTYPE)
    gate = _load_gate(rows.gate, row, cols, ok, SPEC, SETTINGS)
    u = gate_h(h, gate, 0, SPEC)
    dy_row = row_offset(rows.dy, row, SETTINGS.DIVISIBILITY, SETTINGS.GROUP_ROWS)
    dy = _load(rows.dy.ptr + dy_row + cols, ok, SPEC.COMPUTE_DTYPE)
    rstd = tl.load(rows.rstd_ptr + row)
    mu = tl.load(rows.mu_ptr + row) if SPEC.CENTER else tl.zeros_like(rstd)
    slots = rows.parts_ptr + row * rows.n_parts + parts
    a = tl.sum(tl.load(slots, mask=part_ok, other=0.0), axis=1, keep_dims=True) / n

    x_hat = (tl.where(ok, u - mu, 0.0) if SPEC.CENTER else u) * rstd
    rounded_x_hat, dz, g, dscale, dshift, dgate = gradient_before_affine(
        dy, x_hat, gate, parameters, 0, SPEC, SETTINGS.PRECISE
    )
    dx = g - x_hat * a
    if SPEC.CENTER:
        sum_g = tl.load(slots + sums_of_g, mask=part_ok, other=0.0)
        dx -= tl.sum(sum_g, axis=1, keep_dims=True) / n
    dx *= rstd
    if SPEC.GATE_FIRST:
        dx, dgate = gradient_before_gate(dx, h, gate, 0, SPEC, SETTINGS.PRECISE)
    offsets = row * rows.n_cols + cols
    if rows.dgate_ptr is not None:
        store_row(rows.dgate_ptr + offsets, dgate, ok)
    if rows.dh.ptr is not None:
        dh_row = row_offset(rows.dh, row, SETTINGS.DIVISIBILITY, SETTINGS.GROUP_ROWS)
        dx += _load(rows.dh.ptr + dh_row + cols, ok, SPEC.COMPUTE_DTYPE)
    dresidual = dx
    dresidual_gate = dx
    if len(residual_gate) > 0:
        x_row = row_offset(rows.x, row, SETTINGS.DIVISIBILITY, SETTINGS.GROUP_ROWS)
        term = _load(rows.x.ptr + x_row + cols, ok, SPEC.COMPUTE_DTYPE)
        if len(pre_bias) > 0:
            term += widen(pre_bias[0], SPEC.COMPUTE_DTYPE)
        dresidual_gate = dx * term
        dx = dx * widen(residual_gate[0], SPEC.COMPUTE_DTYPE)
    store_dx(rows.dx_ptr, rows.dresidual_ptr, offsets, dx, dresidual, ok)
    return dx, dz * rounded_x_hat, dz, dscale, dshift, dresidual_gate


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def backward_apply(
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
    parts_ptr,  # from backward_sums
    dx_ptr,
    dresidual_ptr,
    dgate_ptr,
    dpre_bias_partial_ptr,  # (row groups, n_cols) partial sums
    dweight_partial_ptr,
    dbias_partial_ptr,
    dscale_partial_ptr,  # (spans, n_cols) partial sums
    dshift_partial_ptr,
    dresidual_gate_partial_ptr,
    dscale_ptr,  # the sums themselves, stored where a sample is one span
    dshift_ptr,
    dresidual_gate_ptr,
    dy_row_stride,
    dh_row_stride,
    h_row_stride,
    n_rows,
    n_cols,
    n_parts,
    n_col_blocks,
    rows_per_program,
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
    DIVISIBILITY: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    WIDE_ROWS: tl.constexpr,
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,  # a power of two, at least n_parts
):
    """A program computes BLOCK_COLS columns of ``rows_per_program`` rows; with scale and shift, of every n-th span of
    rows, where n programs have these columns. Constants as in ``backward_sums``.
    """
    SPEC: tl.constexpr = spec_of(PROGRAM)
    PRECISE: tl.constexpr = WIDE_ROWS or is_precise(
        h_ptr,
        pre_bias_ptr,
        weight_ptr,
        bias_ptr,
        scale_ptr,
        shift_ptr,
        residual_gate_ptr,
        gate_ptr,
    )
    SETTINGS: tl.constexpr = _Settings(DIVISIBILITY, GROUP_ROWS, BLOCK_PARTS, PRECISE)
    n_cols = n_cols * DIVISIBILITY
    pid = tl.program_id(0)
    group = pid // n_col_blocks
    rows = _Rows(
        Matrix(dy_ptr, dy_row_stride, dy_group_gap),
        Matrix(dh_ptr, dh_row_stride, dh_group_gap),
        Matrix(h_ptr, h_row_stride, h_group_gap),
        Matrix(gate_ptr, gate_row_stride, gate_group_gap),
        Matrix(x_ptr, x_row_stride, x_group_gap),
        mu_ptr,
        rstd_ptr,
        parts_ptr,
        dx_ptr,
        dresidual_ptr,
        dgate_ptr,
        n_rows,
        n_cols,
        n_parts,
    )
    cols = (pid % n_col_blocks) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    ok = cols < n_cols
    pre_bias = load_parameter(pre_bias_ptr, cols, ok)
    parameters = load_parameters(
        ParameterPointers(weight_ptr, bias_ptr, None, None, 0, 0), cols, ok
    )
    zeros = tl.zeros((1, BLOCK_COLS), SPEC.COMPUTE_DTYPE)
    dpre_bias = zeros
    dweight = zeros
    dbias = zeros

    if rows_per_sample is None:
        first_row = tl.cast(group, tl.int64) * rows_per_program
        for row in range(first_row, tl.minimum(first_row + rows_per_program, n_rows)):
            to_dpre_bias, to_dweight, to_dbias, _, _, _ = _store_row_dx(
                rows, row, pre_bias, parameters, (), cols, ok, SPEC, SETTINGS
            )
            if dpre_bias_partial_ptr is not None:
                dpre_bias += to_dpre_bias
            if dweight_partial_ptr is not None:
                dweight += to_dweight
            if dbias_partial_ptr is not None:
                dbias += to_dbias
    else:
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
        spans = Spans(rows_per_sample, n_samples, sample_rows, span_rows, spans_per_sample)
        n_groups = tl.num_programs(0) // n_col_blocks
        for span in range(group, n_samples * spans_per_sample, n_groups):
            sample, first, end = span_of(spans, span)
            scale_row, shift_row, gate_row = offsets_of_sample(sample, modulation, DIVISIBILITY)
            pointers = ParameterPointers(None, None, scale_ptr, shift_ptr, scale_row, shift_row)
            of_sample = load_parameters(pointers, cols, ok)
            of_span = Parameters(
                parameters.weight, parameters.bias, of_sample.scale, of_sample.shift
            )
            residual_gate = load_parameter(residual_gate_ptr, cols, ok, gate_row)
            dscale = zeros
            dshift = zeros
            dresidual_gate = zeros
            for number in range(first, end):
                row = row_of_sample(spans, sample, number)
                to_dpre_bias, to_dweight, to_dbias, to_dscale, to_dshift, to_gate = _store_row_dx(
                    rows, row, pre_bias, of_span, residual_gate, cols, ok, SPEC, SETTINGS
                )
                if dpre_bias_partial_ptr is not None:
                    dpre_bias += to_dpre_bias
                if dweight_partial_ptr is not None:
                    dweight += to_dweight
                if dbias_partial_ptr is not None:
                    dbias += to_dbias
                if dscale_partial_ptr is not None:
                    dscale += to_dscale
                if dshift_partial_ptr is not None:
                    dshift += to_dshift
                if dresidual_gate_partial_ptr is not None:
                    dresidual_gate += to_gate
            final = tl.cast(sample, tl.int64) * n_cols
            if dscale_partial_ptr is not None:
                dscale_out = SumPointers(dscale_partial_ptr, dscale_ptr + final)
                store_column_sums(dscale_out, dscale, span, spans_per_sample, n_cols, cols, ok)
            if dshift_partial_ptr is not None:
                dshift_out = SumPointers(dshift_partial_ptr, dshift_ptr + final)
                store_column_sums(dshift_out, dshift, span, spans_per_sample, n_cols, cols, ok)
            if dresidual_gate_partial_ptr is not None:
                gate_out = SumPointers(dresidual_gate_partial_ptr, dresidual_gate_ptr + final)
                store_column_sums(
                    gate_out, dresidual_gate, span, spans_per_sample, n_cols, cols, ok
                )

    partial = tl.cast(group, tl.int64) * n_cols + cols
    if dpre_bias_partial_ptr is not None:
        tl.store(dpre_bias_partial_ptr + partial, dpre_bias, mask=ok)
    if dweight_partial_ptr is not None:
        tl.store(dweight_partial_ptr + partial, dweight, mask=ok)
    if dbias_partial_ptr is not None:
        tl.store(dbias_partial_ptr + partial, dbias, mask=ok)
