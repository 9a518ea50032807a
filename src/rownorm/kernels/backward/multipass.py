"""Backward where no program has a whole row in registers: h and dy are loaded for a and b, then again for dx.

    x_hat = (h - mu) * rstd                       dz = dy * activation'(z)
    g     = dz * (weight + WEIGHT_SHIFT)          a  = mean(g * x_hat),  b = mean(g) if CENTER else 0
    dx    = rstd * (g - b - a * x_hat) [+ dh]
    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx

    backward_sums    first kernel: sums of g * x_hat and of g over one part of a row
    backward_apply   second kernel: dx of one block of columns over many rows, and the sums over these rows

Regimes looped (one part per row) and split (several). In registers: one chunk of BLOCK_COLS columns, and the sums over
rows of these columns. A part is ``part_blocks`` chunks.
"""

import triton
import triton.language as tl

from ..activations import is_precise
from ..bundles import BACKWARD_INTEGERS, Matrix, ParameterPointers, spec_of
from ..gradient import gradient_before_affine, store_dx
from ..memory import load_parameter, load_parameters, row_offset, widen


@triton.jit
def _load(pointers, ok, COMPUTE_DTYPE: tl.constexpr):
    """A part of a row, (1, BLOCK_COLS); 0 where ``ok`` is false."""
    return widen(tl.load(pointers, mask=ok, other=0.0), COMPUTE_DTYPE)


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def backward_sums(
    dy_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
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
    DIVISIBILITY: tl.constexpr,  # of strides, gaps and n_cols, which are passed divided by it: see ``bundles``
    GROUP_ROWS: tl.constexpr,  # rows between two gaps, or 0
    WIDE_ROWS: tl.constexpr,  # whether dy or dx has more than 16 bits
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,
):
    """A program computes both sums of one part of one row. Constants without a comment: see ``bundles``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    # The dtypes of these tensors are those of their gradients.
    PRECISE: tl.constexpr = WIDE_ROWS or is_precise(h_ptr, pre_bias_ptr, weight_ptr, bias_ptr)
    pid = tl.program_id(0).to(tl.int64)
    row = pid // n_parts
    first_col = (pid % n_parts).to(tl.int32) * part_blocks * BLOCK_COLS
    end_col = tl.minimum(first_col + part_blocks * BLOCK_COLS, n_cols * DIVISIBILITY)
    h_rows = Matrix(h_ptr, h_row_stride, h_group_gap)
    dy_rows = Matrix(dy_ptr, dy_row_stride, dy_group_gap)
    h_row = row_offset(h_rows, row, DIVISIBILITY, GROUP_ROWS)
    dy_row = row_offset(dy_rows, row, DIVISIBILITY, GROUP_ROWS)
    parameter_pointers = ParameterPointers(weight_ptr, bias_ptr)
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
        if len(pre_bias) > 0:
            h += widen(pre_bias[0], SPEC.COMPUTE_DTYPE)
        dy = _load(dy_ptr + dy_row + cols, ok, SPEC.COMPUTE_DTYPE)
        x_hat = (tl.where(ok, h - mu, 0.0) if SPEC.CENTER else h) * rstd
        _, _, g = gradient_before_affine(dy, x_hat, parameters, 0, SPEC, PRECISE)
        sum_gx += g * x_hat
        sum_g += g

    slot = parts_ptr + pid + tl.zeros((1, 1), tl.int64)
    tl.store(slot, tl.sum(sum_gx, axis=1, keep_dims=True))
    if SPEC.CENTER:
        offset = tl.cast(n_rows, tl.int64) * n_parts
        tl.store(slot + offset, tl.sum(sum_g, axis=1, keep_dims=True))


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def backward_apply(
    dy_ptr,
    dh_ptr,
    h_ptr,
    pre_bias_ptr,
    weight_ptr,
    bias_ptr,
    mu_ptr,
    rstd_ptr,
    parts_ptr,  # from backward_sums
    dx_ptr,
    dresidual_ptr,
    dpre_bias_partial_ptr,  # (row groups, n_cols) partial sums
    dweight_partial_ptr,
    dbias_partial_ptr,
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
    DIVISIBILITY: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    WIDE_ROWS: tl.constexpr,
    PROGRAM: tl.constexpr,  # what is computed: a ``bundles.Spec`` with the names of dtypes
    BLOCK_COLS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,  # a power of two, at least n_parts
):
    """A program computes BLOCK_COLS columns of ``rows_per_program`` rows. Constants as in ``backward_sums``."""
    SPEC: tl.constexpr = spec_of(PROGRAM)
    PRECISE: tl.constexpr = WIDE_ROWS or is_precise(h_ptr, pre_bias_ptr, weight_ptr, bias_ptr)
    n_cols = n_cols * DIVISIBILITY
    n = tl.cast(n_cols, SPEC.COMPUTE_DTYPE)
    pid = tl.program_id(0)
    group = pid // n_col_blocks
    dy_rows = Matrix(dy_ptr, dy_row_stride, dy_group_gap)
    dh_rows = Matrix(dh_ptr, dh_row_stride, dh_group_gap)
    h_rows = Matrix(h_ptr, h_row_stride, h_group_gap)
    cols = (pid % n_col_blocks) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    ok = cols < n_cols
    pre_bias = load_parameter(pre_bias_ptr, cols, ok)
    parameters = load_parameters(ParameterPointers(weight_ptr, bias_ptr), cols, ok)
    parts = tl.arange(0, BLOCK_PARTS)[None, :]
    part_ok = parts < n_parts
    sums_of_g = tl.cast(n_rows, tl.int64) * n_parts
    dpre_bias = tl.zeros((1, BLOCK_COLS), SPEC.COMPUTE_DTYPE)
    dweight = tl.zeros((1, BLOCK_COLS), SPEC.COMPUTE_DTYPE)
    dbias = tl.zeros((1, BLOCK_COLS), SPEC.COMPUTE_DTYPE)

    first_row = tl.cast(group, tl.int64) * rows_per_program
    for row in range(first_row, tl.minimum(first_row + rows_per_program, n_rows)):
        h_row = row_offset(h_rows, row, DIVISIBILITY, GROUP_ROWS)
        h = _load(h_ptr + h_row + cols, ok, SPEC.COMPUTE_DTYPE)
        if len(pre_bias) > 0:
            h += widen(pre_bias[0], SPEC.COMPUTE_DTYPE)
        dy_row = row_offset(dy_rows, row, DIVISIBILITY, GROUP_ROWS)
        dy = _load(dy_ptr + dy_row + cols, ok, SPEC.COMPUTE_DTYPE)
        rstd = tl.load(rstd_ptr + row)
        mu = tl.load(mu_ptr + row) if SPEC.CENTER else tl.zeros_like(rstd)
        slots = parts_ptr + row * n_parts + parts
        a = tl.sum(tl.load(slots, mask=part_ok, other=0.0), axis=1, keep_dims=True) / n

        x_hat = (tl.where(ok, h - mu, 0.0) if SPEC.CENTER else h) * rstd
        rounded_x_hat, dz, g = gradient_before_affine(dy, x_hat, parameters, 0, SPEC, PRECISE)
        dx = g - x_hat * a
        if SPEC.CENTER:
            sum_g = tl.load(slots + sums_of_g, mask=part_ok, other=0.0)
            dx -= tl.sum(sum_g, axis=1, keep_dims=True) / n
        dx *= rstd
        if dh_ptr is not None:
            dh_row = row_offset(dh_rows, row, DIVISIBILITY, GROUP_ROWS)
            dx += _load(dh_ptr + dh_row + cols, ok, SPEC.COMPUTE_DTYPE)

        store_dx(dx_ptr, dresidual_ptr, row * n_cols + cols, dx, ok)
        if dpre_bias_partial_ptr is not None:
            dpre_bias += dx
        if dweight_partial_ptr is not None:
            dweight += dz * rounded_x_hat
        if dbias_partial_ptr is not None:
            dbias += dz

    partial = tl.cast(group, tl.int64) * n_cols + cols
    if dpre_bias_partial_ptr is not None:
        tl.store(dpre_bias_partial_ptr + partial, dpre_bias, mask=ok)
    if dweight_partial_ptr is not None:
        tl.store(dweight_partial_ptr + partial, dweight, mask=ok)
    if dbias_partial_ptr is not None:
        tl.store(dbias_partial_ptr + partial, dbias, mask=ok)
