"""Some columns of one row, loaded in a loop over chunks: their moments, and y. For rows that are loaded more than once.

    (mean, m2) of columns start to end, m2 = sum((u - mean)^2), u = h [* gate_activation(gate), if GATE_FIRST]
    y of columns start to end, from mu and rstd of the whole row

In registers: one chunk of BLOCK_COLS columns, and running sums of the same shape.
"""

import triton
import triton.language as tl

from ..activations import activate, is_precise
from ..affine import affine, gate_h, gate_y, modulate, round_x_hat, x_hat_chunks
from ..memory import in_range, load_gate, load_h, load_parameters, round_to, store_row
from ..moments import (
    all_rows,
    moments_about,
    moments_about_zero,
    refined_mean,
    scales,
    sum_both,
    sum_vectors,
)
from ..target import reciprocal


@triton.jit
def _load_u(
    source,
    cols,
    ok,
    ROUND_H_TO: tl.constexpr,
    EVICTION: tl.constexpr,
    SPEC: tl.constexpr,
):
    """``u`` at ``cols``: h, rounded to ROUND_H_TO unless that is None, multiplied with the gate if GATE_FIRST."""
    h = load_h(source, cols, ok, ok, SPEC.COMPUTE_DTYPE, EVICTION, SPEC.ROUND_EACH_TO)
    h = round_to(h, ROUND_H_TO, SPEC.COMPUTE_DTYPE)
    if SPEC.GATE_FIRST:
        h = gate_h(h, load_gate(source, cols, ok, EVICTION), 0, SPEC)
    return h


@triton.jit
def _range_sums(
    origin,
    factor,
    source,
    columns,
    ROUND_H_TO: tl.constexpr,
    SPEC: tl.constexpr,
    CHUNKING: tl.constexpr,
):
    """The sums of ``(u - origin) * factor``, if CENTER, and of ``(u - origin)^2``.

    origin, factor: numbers per row, or None for 0 and 1. ROUND_H_TO: the dtype that h is rounded to first, or None.
    """
    lanes = tl.arange(0, CHUNKING.BLOCK_COLS)[None, :]
    total = tl.zeros((1, CHUNKING.BLOCK_COLS), SPEC.COMPUTE_DTYPE)
    squares = tl.zeros((1, CHUNKING.BLOCK_COLS), SPEC.COMPUTE_DTYPE)
    for start in range(columns.start, columns.end, CHUNKING.BLOCK_COLS):
        cols = start + lanes
        ok = in_range(cols, columns.end, CHUNKING.EVEN_COLS)
        h = _load_u(source, cols, ok, ROUND_H_TO, "evict_last", SPEC)
        if origin is not None:
            h = tl.where(ok, h - origin, 0.0)
        squares += h * h
        if SPEC.CENTER:
            total += h if factor is None else h * factor
    if SPEC.CENTER:
        return sum_both(total, squares)
    else:
        zero = tl.zeros((1, 1), SPEC.COMPUTE_DTYPE)
        return zero, tl.sum(squares, axis=1, keep_dims=True)


@triton.jit
def reloaded_sums(
    origin,
    factor,
    source,
    columns,
    ROUND_H_TO: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    VECTOR_WIDTH: tl.constexpr,
):
    """The sums of ``(h - origin) * factor`` and of ``(h - origin)^2`` in fp32. ROUND_H_TO: as in ``_range_sums``.

    For a program that has these columns in registers and rarely needs these sums: this code takes few registers.
    VECTOR_WIDTH: see ``moments.sum_vectors``.
    """
    total = tl.zeros((1, BLOCK_COLS // VECTOR_WIDTH), tl.float32)
    squares = tl.zeros((1, BLOCK_COLS // VECTOR_WIDTH), tl.float32)
    for start in range(columns.start, columns.end, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)[None, :]
        ok = cols < columns.end
        h = load_h(source, cols, ok, ok, tl.float32, "")
        deviation = tl.where(ok, round_to(h, ROUND_H_TO, tl.float32) - origin, 0.0)
        total += sum_vectors(deviation * factor, VECTOR_WIDTH)
        squares += sum_vectors(deviation * deviation, VECTOR_WIDTH)
    total, squares = sum_both(total, squares)
    return tl.sum(total), tl.sum(squares)


@triton.jit
def range_moments(
    source,
    columns,
    SPEC: tl.constexpr,
    CHUNKING: tl.constexpr,
):
    """(mean, m2); (0, sum of squares) if not CENTER.

    One pass, and another one where the mean is not small (see ``moments_about_zero``). That one takes deviations
    from ``origin``, the mean of the first chunk. It is far from the mean of all chunks only where chunks differ, and
    then the variance is large too: with k chunks, at most k times the rounding errors of a third pass, whatever the
    data.
    """
    total, squares = _range_sums(None, None, source, columns, None, SPEC, CHUNKING)
    if SPEC.CENTER:
        n_cols = columns.end - columns.start
        n = tl.cast(n_cols, SPEC.COMPUTE_DTYPE)
        mean, m2, mean_is_small = moments_about_zero(total, squares, n)
        if not all_rows(mean_is_small):
            cols = columns.start + tl.arange(0, CHUNKING.BLOCK_COLS)[None, :]
            ok = in_range(cols, columns.end, CHUNKING.EVEN_COLS)
            first = _load_u(source, cols, ok, None, "", SPEC)
            n_first = tl.cast(tl.minimum(n_cols, CHUNKING.BLOCK_COLS), SPEC.COMPUTE_DTYPE)
            origin = refined_mean(first, ok, n_first, squares)
            factor, rest = scales(squares, n)
            total, squares = _range_sums(origin, factor, source, columns, None, SPEC, CHUNKING)
            mean, m2 = moments_about(origin, total * rest, squares, n)
        return mean, m2
    else:
        return total, squares


@triton.jit
def stored_range_moments(
    mean,
    m2,
    source,
    columns,
    SPEC: tl.constexpr,
    CHUNKING: tl.constexpr,
):
    """LayerNorm: (mean, m2) of columns after h is rounded to STORED_H_DTYPE. mean, m2: before rounding.

    Another pass where the mean is above 1 standard deviation, as in ``moments.stored_h_moments``.
    """
    n = tl.cast(columns.end - columns.start, SPEC.COMPUTE_DTYPE)
    if not all_rows(mean * mean * n <= m2):
        origin = round_to(mean, SPEC.STORED_H_DTYPE, SPEC.COMPUTE_DTYPE)
        total, squares = _range_sums(
            origin, None, source, columns, SPEC.STORED_H_DTYPE, SPEC, CHUNKING
        )
        mean, m2 = moments_about(origin, total * reciprocal(n), squares, n)
    return mean, m2


@triton.jit
def apply_range(
    source,
    columns,
    parameter_pointers,
    outputs,
    mu,
    rstd,
    SPEC: tl.constexpr,
    CHUNKING: tl.constexpr,
    EVICT_FIRST: tl.constexpr,
):
    """Store y, and h if there is a pointer for it. mu, rstd: (1, 1).

    The last chunk comes first, because it was loaded last and is still in the cache.
    """
    lanes = tl.arange(0, CHUNKING.BLOCK_COLS)[None, :]
    n_chunks = tl.cdiv(columns.end - columns.start, CHUNKING.BLOCK_COLS)
    for chunk in range(0, n_chunks):
        cols = columns.start + (n_chunks - 1 - chunk) * CHUNKING.BLOCK_COLS + lanes
        ok = in_range(cols, columns.end, CHUNKING.EVEN_COLS)
        h = load_h(source, cols, ok, ok, SPEC.COMPUTE_DTYPE, "evict_first", SPEC.ROUND_EACH_TO)
        if outputs.h_ptr is not None:
            store_row(outputs.h_ptr + outputs.row + cols, h, ok, EVICT_FIRST)
        gate = load_gate(source, cols, ok, "evict_first")
        h = gate_h(h, gate, 0, SPEC)
        parameters = load_parameters(parameter_pointers, cols, ok)
        if SPEC.CENTER and SPEC.ACTIVATION is not None:
            # An activation takes so many instructions that the one saved by fusing x_hat matters.
            (x_hat,) = x_hat_chunks((h,), mu, rstd, (ok,), SPEC)
        else:
            x_hat = (h - mu if SPEC.CENTER else h) * rstd
        z = affine(round_x_hat(x_hat, SPEC), parameters, 0, SPEC)
        z = modulate(z, parameters, 0, SPEC)
        y = activate(z, SPEC.ACTIVATION, is_precise(outputs.y_ptr))
        y = gate_y(y, gate, parameters, 0, 0, SPEC)
        store_row(outputs.y_ptr + outputs.row + cols, y, ok, EVICT_FIRST)
