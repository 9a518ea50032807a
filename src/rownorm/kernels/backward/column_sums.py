"""Sums over rows: dweight, dbias, dpre_bias, and dscale, dshift and dresidual_gate of each sample.

    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx
    dscale  = sum over the rows of a sample of dm * z,  dshift = sum of dm

Every backward kernel keeps the sums over its own rows in registers. A single program, cluster or group stores them as
the result; several store one row each of a matrix of partial sums, and ``column_sums`` adds these up in a fixed order.

The rows of each sample are divided into spans. A program stores the sums of dscale, dshift and dresidual_gate over a
span when it has computed it. They are the result where a sample is one span; else ``sample_sums`` adds up the spans of
every sample.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..bundles import BACKWARD_INTEGERS


class Spans(NamedTuple):
    """The rows of each sample, divided into spans. A row with the number i in its sample is row
    ``i // rows_per_sample * rows_per_sample * n_samples + sample * rows_per_sample + i % rows_per_sample`` of all.
    """

    rows_per_sample: Any  # neighbors
    n_samples: Any
    sample_rows: Any  # of one sample
    span_rows: Any  # of a span; the last one of a sample may have fewer
    spans_per_sample: Any


@triton.jit
def span_of(spans, span):
    """(sample, number in the sample of the first row, and of the row after the last)."""
    sample = span // spans.spans_per_sample
    first = (span % spans.spans_per_sample) * spans.span_rows
    return sample, first, tl.minimum(first + spans.span_rows, spans.sample_rows)


@triton.jit
def row_of_sample(spans, sample, number):
    """The row, among all rows, of a row with this number in its sample; of several if ``number`` is (rows, 1)."""
    rows_per_sample = tl.cast(spans.rows_per_sample, tl.uint32)
    number = tl.cast(number, tl.uint32)
    repeat = tl.cast(number // rows_per_sample, tl.int64)
    in_period = tl.cast(sample, tl.int64) * spans.rows_per_sample + number % rows_per_sample
    return repeat * spans.n_samples * spans.rows_per_sample + in_period


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


@triton.jit(do_not_specialize=BACKWARD_INTEGERS)
def sample_sums(
    dscale_partial_ptr,
    dshift_partial_ptr,
    dresidual_gate_partial_ptr,
    dscale_ptr,
    dshift_ptr,
    dresidual_gate_ptr,
    n_cols,
    n_samples,
    spans_per_sample,
    DIVISIBILITY: tl.constexpr,  # of n_cols, which is passed divided by it
    BLOCK_ROWS: tl.constexpr,  # partial sums that are added at a time
    BLOCK_COLS: tl.constexpr,  # columns of a program
):
    """A program adds up BLOCK_COLS columns of one sample of dscale, dshift or dresidual_gate."""
    n_cols = n_cols * DIVISIBILITY
    n_blocks = tl.cdiv(n_cols, BLOCK_COLS)
    cols = (tl.program_id(0) % n_blocks) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    row = tl.program_id(0) // n_blocks  # of those that are not None
    sample = tl.cast(row % n_samples, tl.int64)
    first = sample * spans_per_sample * n_cols
    parameter = row // n_samples
    if dscale_ptr is not None:
        if parameter == 0:
            pointers = SumPointers(dscale_partial_ptr + first, dscale_ptr + sample * n_cols)
            _add_partial_sums(pointers, cols, spans_per_sample, n_cols, BLOCK_ROWS)
        parameter -= 1
    if dshift_ptr is not None:
        if parameter == 0:
            pointers = SumPointers(dshift_partial_ptr + first, dshift_ptr + sample * n_cols)
            _add_partial_sums(pointers, cols, spans_per_sample, n_cols, BLOCK_ROWS)
        parameter -= 1
    if dresidual_gate_ptr is not None:
        if parameter == 0:
            final_ptr = dresidual_gate_ptr + sample * n_cols
            pointers = SumPointers(dresidual_gate_partial_ptr + first, final_ptr)
            _add_partial_sums(pointers, cols, spans_per_sample, n_cols, BLOCK_ROWS)
        parameter -= 1
