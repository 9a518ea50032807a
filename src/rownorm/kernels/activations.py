"""Activations and their derivatives, on tiles in fp32 or fp64.

    relu       max(z, 0)
    silu       z * logistic(z),  logistic(u) = 1 / (1 + exp(-u))
    gelu       z * cdf(z),  cdf(z) = (1 + erf(z / sqrt(2))) / 2
    gelu_tanh  z * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3))) / 2 = z * logistic(2 sqrt(2 / pi) * (z + 0.044715 z^3))

    sigmoid    logistic(z), of a gate

PRECISE: accurate to fp32. Otherwise in fewer instructions, accurate enough where all results are stored in 16 bits.
"""

import triton
import triton.language as tl

from .target import reciprocal


@triton.constexpr_function
def is_precise(*pointers):
    """Whether one of these pointers, of which some may be None, points to numbers of more than 16 bits."""
    return any(p is not None and p.dtype.element_ty.primitive_bitwidth > 16 for p in pointers)


@triton.jit
def activate(z, ACTIVATION: tl.constexpr, PRECISE: tl.constexpr):
    """``activation(z)``."""
    if ACTIVATION == "relu":
        return tl.where(z < 0.0, 0.0, z)  # a comparison, not a maximum: nan stays nan
    elif ACTIVATION == "silu":
        return z * _logistic(z * _unit(z.dtype))
    elif ACTIVATION == "gelu":
        return z * _normal_cdf(z) if PRECISE or z.dtype == tl.float64 else _gelu_16_bit(z)
    elif ACTIVATION == "gelu_tanh":
        return z * _logistic(_gelu_tanh_argument(z))
    else:
        return z


@triton.jit
def activation_gradient(
    dy, z, ACTIVATION: tl.constexpr, PRECISE: tl.constexpr, LATENCY_HIDDEN: tl.constexpr = False
):
    """``dy * d activation(z) / dz``.

    LATENCY_HIDDEN: other work hides the latency of instructions, so fewer instructions are faster.
    """
    if ACTIVATION == "relu":
        return tl.where(z <= 0.0, 0.0, dy)
    elif ACTIVATION == "silu":
        s, z_ds = _logistic_and_derivative(z * _unit(z.dtype), z, PRECISE)
        return dy * (s + z_ds)
    elif ACTIVATION == "gelu":
        if PRECISE or z.dtype == tl.float64:
            UNIT: tl.constexpr = _unit(z.dtype)
            density = _power(z * z * (-0.5 * UNIT) - 0.9189385332046727 * UNIT)  # log(sqrt(2 pi))
            return dy * (_normal_cdf(z) + z * density)
        elif LATENCY_HIDDEN:
            return dy * _gelu_slope_16_bit_reciprocal(z)
        else:
            return dy * _gelu_slope_16_bit(z)
    elif ACTIVATION == "gelu_tanh":
        s, z_ds = _logistic_and_derivative(_gelu_tanh_argument(z), z, PRECISE)
        return dy * (s + z_ds * (1.5957691216057308 + 0.21406444881780076 * (z * z)))
    else:
        return dy


@triton.jit
def activate_gate(gate, ACTIVATION: tl.constexpr):
    """``gate_activation(gate)``: the factor that a gate is."""
    if ACTIVATION == "sigmoid":
        return _logistic(gate * _unit(gate.dtype))
    else:
        return activate(gate, ACTIVATION, True)


@triton.jit
def gate_and_slope(gate, ACTIVATION: tl.constexpr, PRECISE: tl.constexpr):
    """(``gate_activation(gate)``, its derivative)."""
    if ACTIVATION is None:
        return gate, tl.full(gate.shape, 1.0, gate.dtype)
    else:
        u = gate * _unit(gate.dtype)
        if ACTIVATION == "silu":
            s, gate_ds = _logistic_and_derivative(u, gate, PRECISE)
            return gate * s, s + gate_ds
        else:
            return _logistic_and_derivative(u, tl.full(gate.shape, 1.0, gate.dtype), PRECISE)


@triton.constexpr_function
def _unit(dtype):
    """1 as an exponent of ``_power``: log2(e) in fp32, which has an instruction for powers of 2; 1 in fp64."""
    return 1.0 if dtype == tl.float64 else 1.4426950408889634


@triton.jit
def _power(u):
    """``exp(u / unit)``."""
    if u.dtype == tl.float64:
        return tl.exp(u)
    else:
        return tl.exp2(u)


@triton.jit
def _logistic(u):
    """``s = 1 / (1 + exp(-u / unit))``."""
    return reciprocal(1.0 + _power(-u))


@triton.jit
def _logistic_and_derivative(u, z, PRECISE: tl.constexpr):
    """(s, z s (1 - s)) with ``s = 1 / (1 + exp(-u / unit))``; if PRECISE, without the cancellation in ``1 - s``."""
    if PRECISE:
        t = _power(-tl.abs(u))
        r = reciprocal(1.0 + t)
        return tl.where(u < 0.0, t * r, r), z * (t * r * r)
    else:
        s = _logistic(u)
        return s, s * (z - z * s)


@triton.jit
def _gelu_tanh_argument(z):
    """``2 sqrt(2 / pi) (z + 0.044715 z^3) * unit``, the argument of the logistic function."""
    UNIT: tl.constexpr = _unit(z.dtype)
    return z * (1.5957691216057308 * UNIT + 0.07135481627260025 * UNIT * (z * z))


@triton.jit
def _normal_cdf(z):
    """The cumulative distribution function of the normal distribution."""
    return 0.5 * (1.0 + tl.erf(z * 0.7071067811865476))


@triton.jit
def _gelu_16_bit(z):
    """gelu for 16-bit results: the error is below 7e-7, and below 2^-14 of the result for z above -5.

    gelu is ``max(z, 0) - abs(z) * tail``, where ``tail`` is the probability of a normal variable beyond ``abs(z)``. The
    logarithm of the tail is nearly a parabola and is approximated by a polynomial. The polynomial decreases up to 13.5,
    where the tail is below 1e-32; beyond, the tail is taken as constant.
    """
    x = tl.minimum(tl.abs(z), 13.5)
    log_tail = 3.15084217e-05 * x - 0.000742280041
    log_tail = log_tail * x + 0.00794678088
    log_tail = log_tail * x - 0.0531446114
    log_tail = log_tail * x - 0.458999336
    log_tail = log_tail * x - 1.15112567
    log_tail = log_tail * x - 1.0
    # Not 0 but a tiny negative number, so that -0 gives -0. A nan gives nan.
    return tl.maximum(z, -2e-38, propagate_nan=tl.PropagateNan.ALL) - x * tl.exp2(log_tail)


@triton.jit
def _gelu_slope_16_bit(z):
    """The derivative of gelu for 16-bit results: the error is below 1.4e-6, and below 2^-13 of a derivative near 0.

    It is ``tail`` where z is negative and ``1 - tail`` elsewhere. ``tail = (0.5 - 0.665 abs(z)) * rest``: the first
    factor has the root of the tail, and the logarithm of the rest is nearly a parabola.
    """
    x = tl.abs(z)
    log_rest = 0.000254555804 - 1.16321988e-05 * x
    log_rest = log_rest * x - 0.00243419436
    log_rest = log_rest * x + 0.0137988487
    log_rest = log_rest * x - 0.0538959706
    log_rest = log_rest * x - 0.561038482
    log_rest = log_rest * x - 0.383151806
    half = _with_sign_of(z, 0.5)  # selects the side without a comparison
    return (0.5 + half) - (half - 0.665077995 * z) * tl.exp2(log_rest * x)


@triton.jit
def _gelu_slope_16_bit_reciprocal(z):
    """The same in two instructions less, with an error below 3e-7, but with the latency of a reciprocal.

    The logarithm of the rest is a parabola plus a function that tends to a constant: the reciprocal of a parabola. A
    constant factor is moved from one factor of the tail to the other.
    """
    x = tl.abs(z)
    tail = reciprocal(1.71388822 + (1.08372431 + 0.214838109 * x) * x)
    rest = tl.exp2((-0.0142655486 - 0.72071427 * x) * x + tail)
    side = _with_sign_of(z, 0.333678667)
    return tl.where(side < 0.0, 0.0, 1.0) - (side - 0.443844835 * z) * rest


@triton.jit
def _with_sign_of(z, SIZE: tl.constexpr):
    """SIZE, or -SIZE where ``z`` is negative or -0, in one instruction."""
    sign = z.to(tl.uint32, bitcast=True) & 0x80000000
    size = tl.full(z.shape, SIZE, tl.float32).to(tl.uint32, bitcast=True)
    return (sign | size).to(tl.float32, bitcast=True)
