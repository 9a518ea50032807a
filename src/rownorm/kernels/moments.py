"""Mean and rstd of rows, from tiles in registers.

    mu   = mean(h) if CENTER else 0
    m2   = sum((h - mu)^2)
    rstd = 1 / sqrt(m2 / n + EPS)

A row is a tuple of tiles, as in ``memory``. The result for a row depends on that row alone, not on the rows it shares a
tile with.
"""

import triton
import triton.language as tl

from .memory import round_to
from .target import INTERPRETED, reciprocal


@triton.jit
def inverse_std(m2, n, SPEC: tl.constexpr, FAST_RSTD: tl.constexpr = False):
    """``rstd = 1 / sqrt(m2 / n + EPS)``, from the sum of a row's squared deviations.

    Root and quotient are rounded to nearest, which the compiler does in subroutines that need registers of their own.
    FAST_RSTD needs none: ``rsqrt``, off by up to 2 ulp, and one step of Newton's method.
    """
    variance = m2 * reciprocal(n) + tl.full((), SPEC.EPS, SPEC.COMPUTE_DTYPE)
    if SPEC.COMPUTE_DTYPE == tl.float64:
        return 1.0 / tl.sqrt(variance)
    elif FAST_RSTD and SPEC.EPS > 1e-37:  # So the variance is neither 0 nor subnormal.
        guess = tl.rsqrt(variance)
        refined = tl.fma(0.5 * guess, tl.fma(-(variance * guess), guess, 1.0), guess)
        return tl.where(variance < float("inf"), refined, guess)
    else:
        return tl.div_rn(1.0, tl.sqrt_rn(variance))


@triton.jit
def add_chunks(chunks):
    """The sum of a tuple of tiles, one tile."""
    total = chunks[0]
    for c in tl.static_range(1, len(chunks)):
        total += chunks[c]
    return total


@triton.jit
def sum_both(a, b):
    """The row sums of two tiles. One reduction for both, so that the warps of a program synchronize once, not twice."""
    if INTERPRETED:
        return tl.sum(a, axis=1, keep_dims=True), tl.sum(b, axis=1, keep_dims=True)
    else:
        first, second = tl.split(tl.sum(tl.join(a, b), axis=1))
        return first[:, None], second[:, None]


@triton.jit
def sum_vectors(tile, VECTOR_WIDTH: tl.constexpr):
    """Add up VECTOR_WIDTH neighboring columns, those of one thread: a running sum takes one register, not that many."""
    vectors = tl.reshape(tile, (1, tile.shape[1] // VECTOR_WIDTH, VECTOR_WIDTH))
    return tl.sum(vectors, axis=2)


@triton.jit
def all_rows(ok):
    """Whether ``ok``, (rows, 1), holds for all rows of a tile."""
    return tl.sum(ok.to(tl.int32)) == ok.shape[0]


@triton.jit
def scales(squares, n):
    """(factor, rest): the mean of deviations is ``sum(deviation * factor) * rest``, with ``factor * rest = 1 / n``.

    squares: of the row. The factor is 1, so that denormal numbers lose no bits, except where the squares overflow:
    there the sum could overflow, too.
    """
    share = reciprocal(n)
    in_range = squares < float("inf")
    return tl.where(in_range, 1.0, share), tl.where(in_range, share, 1.0)


@triton.jit
def refined_mean(h, inside, n, squares):
    """The mean of a tile's rows, ``n`` columns each, rounded once. squares: see ``scales``.

    A sum rounds at every step. But ``h - mean`` is nearly exact even where the mean is 1e4 times the standard
    deviation, so the mean of these deviations is the rounding error of the first mean. A constant row gets its own
    value.
    """
    mean = tl.sum(h * reciprocal(n), axis=1, keep_dims=True)  # the sum of h itself could overflow
    factor, rest = scales(squares, n)
    return mean + tl.sum(tl.where(inside, (h - mean) * factor, 0.0), axis=1, keep_dims=True) * rest


@triton.jit
def moments_about(origin, shift, squares, n):
    """(mean, m2) of rows, from the mean of ``h - origin`` and the sum of its squares.

    Squares that overflow stay infinite: the row has rstd 0 and a finite mean, so its ``x_hat`` is 0.
    """
    squares = tl.where(squares < float("inf"), squares - n * shift * shift, squares)
    return origin + shift, tl.where(squares < 0.0, 0.0, squares)  # rounding can make it negative


@triton.jit
def moments_about_zero(total, squares, n):
    """(mean, m2, whether the mean is small), from the sums of ``h`` and of its squares.

    The mean is small if its magnitude is below 1 standard deviation. The variance is then more than half of the mean
    square, so the difference that gives it loses at most one bit. Other rows need ``moments_about`` a value near their
    mean; so do rows whose sums overflow, because sums of deviations may not.
    """
    mean = total * reciprocal(n)
    offset = total * mean
    return mean, squares - offset, offset < 0.5 * squares


@triton.jit
def _squares(h):
    """The sum of the squares of a tuple of tiles, one tile."""
    squares = h[0] * h[0]
    for c in tl.static_range(1, len(h)):
        squares += h[c] * h[c]
    return squares


@triton.jit
def _deviations(h, origin, inside):
    """``h - origin`` in chunks, 0 in lanes that do not exist."""
    deviations = ()
    for c in tl.static_range(len(h)):
        deviations = deviations + (tl.where(inside[c], h[c] - origin, 0.0),)
    return deviations


@triton.jit
def _moments_about_mean(h, inside, n):
    """(mean, m2) in two passes over the registers: the mean, then the deviations from it, whose sum gives its rounding
    error. Where that sum overflows, so do the squares, and the first mean stays.
    """
    share = reciprocal(n)
    terms = ()
    for c in tl.static_range(len(h)):
        terms = terms + (h[c] * share,)  # the sum of h itself could overflow
    mean = tl.sum(add_chunks(terms), axis=1, keep_dims=True)
    deviations = _deviations(h, mean, inside)
    total, squares = sum_both(add_chunks(deviations), _squares(deviations))
    shift = tl.where(tl.abs(total) < float("inf"), total * share, 0.0)
    return moments_about(mean, shift, squares, n)


@triton.jit
def moments_of_16_bit_rows(h, inside, n_cols, SPEC: tl.constexpr, FAST_RSTD: tl.constexpr):
    """LayerNorm: (mu, rstd) of several rows of up to 1024 fp16 or bf16 numbers, in two passes over the registers. No
    branch, because one that several rows have to agree on costs a reduction over the program.

    A sum of so few numbers with so few bits is exact in fp32 where they are of about the same magnitude, as they are in
    a row far from 0. In other rows the mean is at most some standard deviations, and so is its rounding error small.
    """
    n = tl.cast(n_cols, SPEC.COMPUTE_DTYPE)
    terms = ()
    for c in tl.static_range(len(h)):
        # Divided by a power of two, which rounds nothing, so that the sum cannot overflow.
        terms = terms + (h[c] * (1.0 / 1024),)
    total = tl.sum(add_chunks(terms), axis=1, keep_dims=True)
    divisor = n * (1.0 / 1024)
    share = reciprocal(divisor)
    mu = total * share
    mu = tl.fma(tl.fma(-mu, divisor, total), share, mu)  # total / divisor, rounded once
    deviations = _deviations(h, mu, inside)
    m2 = tl.sum(_squares(deviations), axis=1, keep_dims=True)
    return mu, inverse_std(m2, n, SPEC, FAST_RSTD)


@triton.jit
def moments(h, inside, n_cols, SPEC: tl.constexpr, FAST_RSTD: tl.constexpr):
    """(mu, rstd) of whole rows. Lanes where ``inside``, (1, columns), is false are 0 in ``h`` and do not count.

    One pass, and two more where the mean of a row is not small (see ``moments_about_zero``).
    """
    n = tl.cast(n_cols, SPEC.COMPUTE_DTYPE)
    if SPEC.CENTER:
        total, squares = sum_both(add_chunks(h), _squares(h))
        mu, m2, mean_is_small = moments_about_zero(total, squares, n)
        if tl.sum(mean_is_small.to(tl.int32)) < h[0].shape[0]:
            exact_mu, exact_m2 = _moments_about_mean(h, inside, n)
            mu = tl.where(mean_is_small, mu, exact_mu)
            m2 = tl.where(mean_is_small, m2, exact_m2)
        return mu, inverse_std(m2, n, SPEC, FAST_RSTD)
    else:
        squares = ()
        for c in tl.static_range(len(h)):
            squares = squares + (h[c] * h[c],)
        m2 = tl.sum(add_chunks(squares), axis=1, keep_dims=True)
        return tl.zeros_like(m2), inverse_std(m2, n, SPEC, FAST_RSTD)


@triton.jit
def stored_h_moments(
    h,
    stored,
    inside,
    mu,
    rstd,
    n_cols,
    SPEC: tl.constexpr,
    FAST_RSTD: tl.constexpr,
):
    """LayerNorm: (mu, rstd) of rows after ``h`` is rounded to STORED_H_DTYPE: the h that backward loads.

    stored: the rounded rows in chunks, if they were multiplied with a gate after they were rounded; else an empty
    tuple. Rounding can change the statistics of a row whose mean is above 1 standard deviation. Deviations are taken
    from the rounded mean, so a row that rounding makes constant has deviations of 0.
    """
    mean_above_1_std = tl.abs(mu * rstd) > 1.0
    if tl.sum(mean_above_1_std.to(tl.int32)) > 0:
        n = tl.cast(n_cols, SPEC.COMPUTE_DTYPE)
        origin = round_to(mu, SPEC.STORED_H_DTYPE, SPEC.COMPUTE_DTYPE)
        deviations = ()
        for c in tl.static_range(len(h)):
            if len(stored) > 0:
                deviation = stored[c] - origin
            else:
                deviation = round_to(h[c], SPEC.STORED_H_DTYPE, SPEC.COMPUTE_DTYPE) - origin
            deviations = deviations + (tl.where(inside[c], deviation, 0.0),)
        # Where a sum overflows, rstd is 0, and the row keeps its statistics.
        total, squares = sum_both(add_chunks(deviations), _squares(deviations))
        stored_mu, m2 = moments_about(origin, total * reciprocal(n), squares, n)
        mu = tl.where(mean_above_1_std, stored_mu, mu)
        rstd = tl.where(mean_above_1_std, inverse_std(m2, n, SPEC, FAST_RSTD), rstd)
    return mu, rstd
