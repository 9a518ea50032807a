"""From statistics to the argument of the activation, on tiles.

    x_hat = (h - mu) * rstd
    z     = x_hat * (weight + WEIGHT_SHIFT) + bias
    z     = z * (scale + SCALE_SHIFT) + shift            modulation

A gate multiplies h if GATE_FIRST, else the result of the activation.

Everything is in COMPUTE_DTYPE. ``x_hat`` is rounded where ROUND_X_HAT_TO names a dtype, and so is what a gate is
multiplied with. The result of every step is where ROUND_EACH_TO does; x_hat, z and the sum are one step.
"""

import triton
import triton.language as tl

from .activations import activate_gate
from .memory import round_to, widen
from .moments import all_rows


@triton.jit
def round_x_hat(x_hat, SPEC: tl.constexpr):
    """``x_hat`` as it is multiplied with the weight: rounded to ROUND_X_HAT_TO, unless that is None."""
    return round_to(x_hat, SPEC.ROUND_X_HAT_TO, SPEC.COMPUTE_DTYPE)


@triton.jit
def _round_each(x, SPEC: tl.constexpr):
    """``x`` as the result of a step: rounded to ROUND_EACH_TO, unless that is None."""
    return round_to(x, SPEC.ROUND_EACH_TO, SPEC.COMPUTE_DTYPE)


@triton.jit
def times(
    x,
    chunks,
    C: tl.constexpr,
    SHIFT: tl.constexpr,
    COMPUTE_DTYPE: tl.constexpr,
    ROUND_TO: tl.constexpr = None,
):
    """``x * (parameter + SHIFT)``, with chunk C of a parameter; ``x`` where it is absent. The sum is rounded to
    ROUND_TO, unless that is None.
    """
    if len(chunks) > 0:
        factor = widen(chunks[C], COMPUTE_DTYPE)
        if SHIFT != 0.0:
            factor += tl.full((), SHIFT, COMPUTE_DTYPE)
            factor = round_to(factor, ROUND_TO, COMPUTE_DTYPE)
        return x * factor
    else:
        return x


@triton.jit
def weigh(x, parameters, C: tl.constexpr, SPEC: tl.constexpr):
    """``x * (weight + WEIGHT_SHIFT)``, with chunk C of the weight."""
    return times(x, parameters.weight, C, SPEC.WEIGHT_SHIFT, SPEC.COMPUTE_DTYPE)


@triton.jit
def scale(z, parameters, C: tl.constexpr, SPEC: tl.constexpr):
    """``z * (scale + SCALE_SHIFT)``, with chunk C of the scale."""
    return times(z, parameters.scale, C, SPEC.SCALE_SHIFT, SPEC.COMPUTE_DTYPE, SPEC.ROUND_EACH_TO)


@triton.jit
def affine(x_hat, parameters, C: tl.constexpr, SPEC: tl.constexpr):
    """``z = x_hat * (weight + WEIGHT_SHIFT) + bias``, with chunk C of weight and bias."""
    z = weigh(x_hat, parameters, C, SPEC)
    if len(parameters.bias) > 0:
        z += widen(parameters.bias[C], SPEC.COMPUTE_DTYPE)
    return _round_each(z, SPEC)


@triton.jit
def modulate(z, parameters, C: tl.constexpr, SPEC: tl.constexpr):
    """``z * (scale + SCALE_SHIFT) + shift``, with chunk C of scale and shift."""
    if len(parameters.scale) > 0:
        z = _round_each(scale(z, parameters, C, SPEC), SPEC)
    if len(parameters.shift) > 0:
        z = _round_each(z + widen(parameters.shift[C], SPEC.COMPUTE_DTYPE), SPEC)
    return z


@triton.jit
def gate_h(h, gate, C: tl.constexpr, SPEC: tl.constexpr):
    """``h`` multiplied with chunk C of the gate, if GATE_FIRST."""
    if SPEC.GATE_FIRST:
        return _round_each(h * gate_factor(gate[C], SPEC), SPEC)
    else:
        return h


@triton.jit
def gate_y(
    y,
    gate,
    parameters,
    C: tl.constexpr,
    PARAMETERS_C: tl.constexpr,
    SPEC: tl.constexpr,
):
    """``y`` multiplied with chunk C of the gate, where there is one, unless GATE_FIRST.

    parameters: those that y was computed with, at chunk PARAMETERS_C.
    """
    if len(gate) > 0 and not SPEC.GATE_FIRST:
        return before_gate(y, parameters, PARAMETERS_C, SPEC) * gate_factor(gate[C], SPEC)
    else:
        return y


@triton.jit
def gate_factor(gate, SPEC: tl.constexpr):
    """``gate_activation(gate)``."""
    factor = activate_gate(widen(gate, SPEC.COMPUTE_DTYPE), SPEC.GATE_ACTIVATION)
    return _round_each(factor, SPEC)


@triton.jit
def before_gate(y, parameters, C: tl.constexpr, SPEC: tl.constexpr):
    """``y`` as a gate multiplies it. Where ROUND_X_HAT_TO names a dtype it is rounded, unless a parameter of a wider
    one was multiplied with it.
    """
    y = _round_each(y, SPEC)
    if SPEC.ROUND_X_HAT_TO is not None:
        SAME: tl.constexpr = (
            _has_dtype(parameters.weight, SPEC.ROUND_X_HAT_TO)
            and _has_dtype(parameters.bias, SPEC.ROUND_X_HAT_TO)
            and _has_dtype(parameters.scale, SPEC.ROUND_X_HAT_TO)
            and _has_dtype(parameters.shift, SPEC.ROUND_X_HAT_TO)
        )
        if SAME:
            y = round_to(y, SPEC.ROUND_X_HAT_TO, SPEC.COMPUTE_DTYPE)
    return y


@triton.constexpr_function
def _has_dtype(chunks, dtype):
    """Whether a parameter has this dtype, or is absent."""
    return len(chunks) == 0 or chunks[0].dtype == dtype


@triton.jit
def mean_below_4_std(mu, rstd):
    """Whether the mean of a row is below 4 standard deviations, so that ``fused_x_hat`` is accurate enough."""
    return tl.abs(mu * rstd) < 4.0


@triton.jit
def fused_x_hat(h, mu, rstd):
    """``h * rstd - mu * rstd``: one instruction instead of two, but the rounding error of ``mu * rstd`` is in every
    element of the row.
    """
    return tl.fma(h, tl.broadcast_to(rstd, h.shape), tl.broadcast_to(-(mu * rstd), h.shape))


@triton.jit
def x_hat_chunks(h, mu, rstd, inside, SPEC: tl.constexpr):
    """``x_hat`` of a tuple of tiles, not rounded; 0 where ``inside`` is false.

    Fused for rows with ``mean_below_4_std``. The result for a row depends on that row alone, not on the rows it shares
    a tile with.
    """
    x_hat = ()
    if SPEC.CENTER:
        can_fuse = mean_below_4_std(mu, rstd)
        for c in tl.static_range(len(h)):
            x_hat = x_hat + (tl.where(inside[c], fused_x_hat(h[c], mu, rstd), 0.0),)
        if not all_rows(can_fuse):
            fused_or_exact = ()
            for c in tl.static_range(len(h)):
                exact = tl.where(inside[c], (h[c] - mu) * rstd, 0.0)
                fused_or_exact = fused_or_exact + (tl.where(can_fuse, x_hat[c], exact),)
            x_hat = fused_or_exact
    else:
        for c in tl.static_range(len(h)):
            x_hat = x_hat + (h[c] * rstd,)
    return x_hat
