"""Sums over rows: dweight, dbias and dpre_bias.

    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx

Every backward kernel keeps the sums over its own rows in registers. A single program, cluster or group stores them as
the result; several store one row each of a matrix of partial sums, and ``column_sums`` adds these up in a fixed order.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..bundles import BACKWARD_INTEGERS


class SumPointers(NamedTuple):
    """Where a sum over rows is stored."""

    partial_ptr: (
        Any  # (programs, n_cols) in the dtype of all arithmetic; None: this sum is not wanted
    )
    final_ptr: Any  # (n_cols,) in the parameter's dtype


@triton.jit
def store_column_sums(pointers, sums, program, n_programs, n_cols, cols, ok):
    """Store a program's sums, (1, columns): as its row of the partial sums, or as the result of a single program."""
    if n_programs == 1:
        final_ptr = pointers.final_ptr
        tl.store(final_ptr + cols, sums.to(final_ptr.dtype.element_ty), mask=ok)
    else:
        row = tl.cast(program, tl.int64) * n_cols
        tl.store(pointers.partial_ptr + row + cols, sums, mask=ok)


@triton.jit
def _add_partial_sums(
    pointers,
    cols,
    n_partials,
    n_cols,
    BLOCK_ROWS: tl.constexpr,
):
    """final[cols] = sum over rows of partial[rows, cols], in the same order every time."""
    ok = cols < n_cols
    total = tl.zeros((BLOCK_ROWS, cols.shape[1]), pointers.partial_ptr.dtype.element_ty)
    for start in range(0, n_partials, BLOCK_ROWS):
        rows = start + tl.arange(0, BLOCK_ROWS)[:, None]
        total += tl.load(
            pointers.partial_ptr + rows.to(tl.int64) * n_cols + cols,
            mask=(rows < n_partials) & ok,
            other=0.0,
        )
    final = tl.sum(total, axis=0, keep_dims=True)
    final_ptr = pointers.final_ptr
    tl.store(final_ptr + cols, final.to(final_ptr.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def column_sums(
    dpre_bias_partial_ptr,
    dweight_partial_ptr,
    dbias_partial_ptr,
    dpre_bias_ptr,
    dweight_ptr,
    dbias_ptr,
    n_partials,
    n_cols,
    DIVISIBILITY: tl.constexpr,  # of n_cols, which is passed divided by it
    BLOCK_ROWS: tl.constexpr,  # partial sums that are added at a time
    BLOCK_COLS: tl.constexpr,  # columns of a program
):
    """A program adds up BLOCK_COLS columns of one parameter. Many small programs are faster than few large ones."""
    n_cols = n_cols * DIVISIBILITY
    n_blocks = tl.cdiv(n_cols, BLOCK_COLS)
    parameter = tl.program_id(0) // n_blocks  # which of those that are not None
    cols = (tl.program_id(0) % n_blocks) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    if dpre_bias_ptr is not None:
        if parameter == 0:
            pointers = SumPointers(dpre_bias_partial_ptr, dpre_bias_ptr)
            _add_partial_sums(pointers, cols, n_partials, n_cols, BLOCK_ROWS)
        parameter -= 1
    if dweight_ptr is not None:
        if parameter == 0:
            pointers = SumPointers(dweight_partial_ptr, dweight_ptr)
            _add_partial_sums(pointers, cols, n_partials, n_cols, BLOCK_ROWS)
        parameter -= 1
    if dbias_ptr is not None:
        if parameter == 0:
            pointers = SumPointers(dbias_partial_ptr, dbias_ptr)
            _add_partial_sums(pointers, cols, n_partials, n_cols, BLOCK_ROWS)
        parameter -= 1
