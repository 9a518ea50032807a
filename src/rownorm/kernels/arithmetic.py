"""The arithmetic of the row program, on tiles that are already loaded.

    h    = x [+ pre_bias] [+ residual]
    mu   = mean(h) if CENTER else 0
    rstd = 1 / sqrt(mean((h - mu)^2) + eps)
    y    = activation((h - mu) * rstd * (weight + WEIGHT_SHIFT) + bias)

Tiles are (rows, columns); a statistic of a row is (rows, 1); a parameter is (1, columns). A tile has a power of two
columns, a row need not: it lies in a tuple of CHUNKS tiles, of which only the last reaches beyond it.
Everything here is computed in COMPUTE: fp32, or fp64 where a row is fp64.
"""

import triton
import triton.language as tl

from .activations import activation_gradient
from .target import INTERPRETED, on_nvidia, reciprocal


@triton.jit
def in_range(index, limit, ALWAYS: tl.constexpr):
    """``index < limit``; a constant, which costs nothing, where it is known to hold."""
    if ALWAYS:
        return tl.full(index.shape, True, tl.int1)
    else:
        return index < limit


@triton.jit
def widened(x, COMPUTE: tl.constexpr):
    """``x`` in COMPUTE. A bf16 is the upper half of an fp32: a shift or a mask, where a conversion takes both."""
    if x.dtype == tl.bfloat16 and COMPUTE == tl.float32:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(COMPUTE)


@triton.jit
def load_ahead(pointers, ok, COMPUTE: tl.constexpr, IN_PAIRS: tl.constexpr = True):
    """What a pipelined loop loads, in COMPUTE; 0 where ``ok`` is false.

    It is copied to shared memory turns ahead, and Triton 3.6 gives such copies no hint; with one stage it is loaded as
    any row is. Of two bf16 that are read from shared memory in one word, the compiler takes the upper one out before it
    shifts it back: three instructions for a pair. IN_PAIRS makes it two, at times with more registers.
    """
    x = tl.load(pointers, mask=ok, other=0.0, eviction_policy="evict_last")
    IS_HALF: tl.constexpr = x.dtype == tl.bfloat16 and COMPUTE == tl.float32
    if IN_PAIRS and IS_HALF and not INTERPRETED and on_nvidia():
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=r,=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        return widened(x, COMPUTE)


@triton.jit
def load_columns(ptr, cols, col_ok):
    """A parameter, (1, columns), in its own dtype. Every program reads it: keep it in cache."""
    return tl.load(ptr + cols, mask=col_ok, other=0.0, eviction_policy="evict_last")


@triton.jit
def load_chunks(
    ptr,
    first: tl.constexpr,
    end: tl.constexpr,
    lanes,
    n_cols,
    BLOCK_COLS: tl.constexpr,
    FULL: tl.constexpr,
):
    """Chunks ``first`` to ``end`` of a parameter; none where there is no parameter. The first FULL of all are full."""
    chunks = ()
    if ptr is not None:
        for c in tl.static_range(first, end):
            cols = c * BLOCK_COLS + lanes
            chunks = chunks + (load_columns(ptr, cols, in_range(cols, n_cols, c < FULL)),)
    return chunks


@triton.jit
def load_h(
    x_ptr,
    residual_ptr,
    pre_bias,
    x_row,
    residual_row,
    cols,
    ok,
    COMPUTE: tl.constexpr,
    CACHE: tl.constexpr,
):
    """``x [+ pre_bias] [+ residual]``. Lanes outside the row are 0, so they add nothing to a sum."""
    x = tl.load(x_ptr + x_row + cols, mask=ok, other=0.0, eviction_policy=CACHE)
    h = widened(x, COMPUTE)
    if pre_bias is not None:
        h += widened(pre_bias, COMPUTE)
    if residual_ptr is not None:
        residual = tl.load(
            residual_ptr + residual_row + cols, mask=ok, other=0.0, eviction_policy=CACHE
        )
        h += widened(residual, COMPUTE)
    return h


@triton.jit
def store_row(pointers, value, ok, LEAVES: tl.constexpr = False):
    """A result, rounded to its dtype, past L1 (``.cg``); or, if it LEAVES, to be the first to leave L2 (``.cs``).

    Rows are loaded as what is to stay (``evict_last``). With both, rows move 1 to 4 % faster on an H200, even those
    that are read once; with one of them they are slower. Whoever reads a result next finds it in L2, unless it leaves.
    """
    result = value.to(pointers.dtype.element_ty)
    tl.store(pointers, result, mask=ok, cache_modifier=".cs" if LEAVES else ".cg")


@triton.jit
def inverse_deviation(
    variation, n, EPS: tl.constexpr, COMPUTE: tl.constexpr, SHORT: tl.constexpr = False
):
    """``1 / sqrt(variation / n + eps)``: rstd, from the sum of a row's squared deviations.

    Root and quotient are rounded to nearest, for which the compiler calls functions that want registers of their own.
    SHORT does without: one step of Newton's method from ``rsqrt``, which alone would be off by 2 ulp.
    """
    variance = variation * reciprocal(n) + tl.full((), EPS, COMPUTE)
    if COMPUTE == tl.float64:
        return 1.0 / tl.sqrt(variance)
    elif SHORT and EPS > 1e-37:  # So it is not 0, and not subnormal.
        guess = tl.rsqrt(variance)
        refined = tl.fma(0.5 * guess, tl.fma(-(variance * guess), guess, 1.0), guess)
        return tl.where(variance < float("inf"), refined, guess)
    else:
        return tl.div_rn(1.0, tl.sqrt_rn(variance))


@triton.jit
def added(chunks, CHUNKS: tl.constexpr):
    """The sum of CHUNKS tiles, one tile."""
    total = chunks[0]
    for c in tl.static_range(1, CHUNKS):
        total += chunks[c]
    return total


@triton.jit
def sum_both(a, b):
    """The sums of the rows of two tiles: in one go, so that the warps of a program meet once and not twice."""
    if INTERPRETED:
        return tl.sum(a, axis=1, keep_dims=True), tl.sum(b, axis=1, keep_dims=True)
    else:
        first, second = tl.split(tl.sum(tl.join(a, b), axis=1))
        return first[:, None], second[:, None]


@triton.jit
def sums_of_neighbours(tile, GROUP: tl.constexpr):
    """What a thread has side by side becomes one number: a sum that is kept takes a register, not GROUP of them."""
    return tl.sum(tl.reshape(tile, (1, tile.shape[1] // GROUP, GROUP)), axis=2)


@triton.jit
def refined_mean(h, inside, n):
    """The mean of a tile's rows, of ``n`` lanes each, rounded once.

    A sum rounds at every step. But ``h - mean`` is nearly exact even where the mean is 1e4 times the spread, so the
    mean of these deviations is what rounding did to the first one. A constant row gets its own value back.
    """
    share = reciprocal(n)
    mean = tl.sum(h * share, axis=1, keep_dims=True)  # of shares, which cannot overflow
    return mean + tl.sum(tl.where(inside, h - mean, 0.0), axis=1, keep_dims=True) * share


@triton.jit
def moments_about(origin, total, squares, n):
    """(mean, sum of squared deviations from it) of rows, from the sums of ``h - origin`` and of its squares."""
    shift = total * reciprocal(n)
    # Squares that overflow stay infinite; rounding makes no negative variance.
    squares = tl.where(squares < float("inf"), squares - total * shift, squares)
    return origin + shift, tl.where(squares < 0.0, 0.0, squares)


@triton.jit
def moments_about_zero(total, squares, n):
    """(mean, sum of squared deviations from it, whether rows are centred), from the sums of ``h`` and of its squares.

    Rows are centred if they vary more than they are off from 0. The variance is then more than half of the mean square,
    and the difference that gives it keeps all bits but one. Others need ``moments_about`` something near their mean; so
    do rows whose sums overflow, which those of deviations from the mean may not do.
    """
    mean = total * reciprocal(n)
    offset = total * mean
    return mean, squares - offset, offset < 0.5 * squares


@triton.jit
def _sums(h, CHUNKS: tl.constexpr):
    """The sums of ``h`` and of its squares, for each row."""
    squares = h[0] * h[0]
    for c in tl.static_range(1, CHUNKS):
        squares += h[c] * h[c]
    return sum_both(added(h, CHUNKS), squares)


@triton.jit
def _moments_about_mean(h, inside, n, CHUNKS: tl.constexpr):
    """(mean, sum of squared deviations) with a pass for the mean, and one for deviations from it."""
    share = reciprocal(n)
    shares = ()
    for c in tl.static_range(CHUNKS):
        shares = shares + (h[c] * share,)  # the sum of these cannot overflow
    mean = tl.sum(added(shares, CHUNKS), axis=1, keep_dims=True)
    deviations = ()
    for c in tl.static_range(CHUNKS):
        deviations = deviations + (tl.where(inside[c], h[c] - mean, 0.0),)
    total, squares = _sums(deviations, CHUNKS)
    return moments_about(mean, total, squares, n)


@triton.jit
def moments(
    h,
    inside,
    n_cols,
    CENTER: tl.constexpr,
    EPS: tl.constexpr,
    COMPUTE: tl.constexpr,
    CHUNKS: tl.constexpr,
    SHORT: tl.constexpr,
):
    """(mu, rstd) of whole rows. Lanes where ``inside`` is false, (1, columns), are 0 in ``h`` and do not count.

    One pass, and two more for rows that need them. A row's result depends on itself alone, whoever shares its tile.
    """
    n = tl.cast(n_cols, COMPUTE)
    if CENTER:
        total, squares = _sums(h, CHUNKS)
        mu, variation, centered = moments_about_zero(total, squares, n)
        if tl.sum(centered.to(tl.int32)) < h[0].shape[0]:
            careful_mu, careful_variation = _moments_about_mean(h, inside, n, CHUNKS)
            mu = tl.where(centered, mu, careful_mu)
            variation = tl.where(centered, variation, careful_variation)
        return mu, inverse_deviation(variation, n, EPS, COMPUTE, SHORT)
    else:
        squares = ()
        for c in tl.static_range(CHUNKS):
            squares = squares + (h[c] * h[c],)
        variation = tl.sum(added(squares, CHUNKS), axis=1, keep_dims=True)
        return tl.zeros_like(variation), inverse_deviation(variation, n, EPS, COMPUTE, SHORT)


@triton.jit
def is_far(mu, rstd):
    """Whether rows are more than a standard deviation from 0: rounding their numbers may then move their statistics."""
    return tl.abs(mu * rstd) > 1.0


@triton.jit
def kept_moments(
    h,
    inside,
    mu,
    rstd,
    n_cols,
    EPS: tl.constexpr,
    COMPUTE: tl.constexpr,
    CHUNKS: tl.constexpr,
    KEPT_AS: tl.constexpr,
    SHORT: tl.constexpr,
):
    """(mu, rstd) of centred rows once they are rounded to KEPT_AS, for backward, which has nothing else of them.

    Deviations are from the rounded mean, so those of a row that rounding makes constant are 0.
    """
    far = is_far(mu, rstd)
    if tl.sum(far.to(tl.int32)) > 0:
        n = tl.cast(n_cols, COMPUTE)
        origin = rounded(mu, KEPT_AS, COMPUTE)
        deviations = ()
        for c in tl.static_range(CHUNKS):
            deviation = rounded(h[c], KEPT_AS, COMPUTE) - origin
            deviations = deviations + (tl.where(inside[c], deviation, 0.0),)
        total, squares = _sums(deviations, CHUNKS)
        kept_mu, variation = moments_about(origin, total, squares, n)
        mu = tl.where(far, kept_mu, mu)
        rstd = tl.where(far, inverse_deviation(variation, n, EPS, COMPUTE, SHORT), rstd)
    return mu, rstd


@triton.jit
def normalize(deviation, rstd, ROUND_TO: tl.constexpr, COMPUTE: tl.constexpr):
    """``x_hat``, rounded to ROUND_TO first where the program asks for that."""
    return rounded(deviation * rstd, ROUND_TO, COMPUTE)


@triton.jit
def rounded(x, ROUND_TO: tl.constexpr, COMPUTE: tl.constexpr):
    """``x`` with the bits of ROUND_TO, where one is named: ``x_hat`` as the weight sees it, ``h`` as it is stored."""
    if ROUND_TO is not None:
        return x.to(ROUND_TO).to(COMPUTE)
    else:
        return x


@triton.jit
def scale(x_hat, weight, WEIGHT_SHIFT: tl.constexpr, COMPUTE: tl.constexpr):
    """``x_hat * (weight + WEIGHT_SHIFT)``."""
    if weight is not None:
        factor = widened(weight, COMPUTE)
        if WEIGHT_SHIFT != 0.0:
            factor += tl.full((), WEIGHT_SHIFT, COMPUTE)
        return x_hat * factor
    else:
        return x_hat


@triton.jit
def affine(x_hat, weight, bias, WEIGHT_SHIFT: tl.constexpr, COMPUTE: tl.constexpr):
    """``x_hat * (weight + WEIGHT_SHIFT) + bias``, the argument of the activation."""
    z = scale(x_hat, weight, WEIGHT_SHIFT, COMPUTE)
    if bias is not None:
        z += widened(bias, COMPUTE)
    return z


@triton.jit
def is_near(mu, rstd):
    """Whether rows are less than 4 standard deviations from 0, so that ``fused_x_hat`` will do for them."""
    return tl.abs(mu * rstd) < 4.0


@triton.jit
def all_of(ok):
    """Whether it is so for all rows of a tile, (rows, 1)."""
    return tl.sum(ok.to(tl.int32)) == ok.shape[0]


@triton.jit
def fused_x_hat(h, mu, rstd):
    """``h * rstd - mu * rstd``: one instruction instead of two, but all of a row is off by what rounding took from
    ``mu * rstd``.
    """
    return tl.fma(h, tl.broadcast_to(rstd, h.shape), tl.broadcast_to(-(mu * rstd), h.shape))


@triton.jit
def x_hat_of(h, mu, rstd, inside, CENTER: tl.constexpr, CHUNKS: tl.constexpr):
    """``(h - mu) * rstd`` in chunks; 0 where ``inside`` is false.

    Fused for rows that are near 0. What a row gets depends on itself alone, whoever shares its tile.
    """
    x_hat = ()
    if CENTER:
        near = is_near(mu, rstd)
        for c in tl.static_range(CHUNKS):
            x_hat = x_hat + (tl.where(inside[c], fused_x_hat(h[c], mu, rstd), 0.0),)
        if not all_of(near):
            careful = ()
            for c in tl.static_range(CHUNKS):
                own = tl.where(inside[c], (h[c] - mu) * rstd, 0.0)
                careful = careful + (tl.where(near, x_hat[c], own),)
            x_hat = careful
    else:
        for c in tl.static_range(CHUNKS):
            x_hat = x_hat + (h[c] * rstd,)
    return x_hat


@triton.jit
def gradient_before_affine(
    dy,
    x_hat,
    weight,
    bias,
    WEIGHT_SHIFT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISE: tl.constexpr,
    ROUND_TO: tl.constexpr,
    COMPUTE: tl.constexpr,
    MAY_WAIT: tl.constexpr = False,
):
    """(x_hat as the weight saw it, dz, g). ``dy`` and ``x_hat`` are 0 outside the row, so all of it is."""
    seen = rounded(x_hat, ROUND_TO, COMPUTE)
    if ACTIVATION is not None:
        z = affine(seen, weight, bias, WEIGHT_SHIFT, COMPUTE)
        dz = activation_gradient(dy, z, ACTIVATION, PRECISE, MAY_WAIT)
    else:
        dz = dy
    return seen, dz, scale(dz, weight, WEIGHT_SHIFT, COMPUTE)
