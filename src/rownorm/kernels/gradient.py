"""Backward's arithmetic on tiles that all backward kernels share: ``dz`` and ``g``, and the store of ``dx``.

    x_hat = (h - mu) * rstd
    dm    = dy * activation'(m), m = z * (scale + SCALE_SHIFT) + shift
    dz    = dm * (scale + SCALE_SHIFT)
    g     = dz * (weight + WEIGHT_SHIFT)
    a     = mean(g * x_hat),  b = mean(g) if CENTER else 0
    dx    = rstd * (g - b - a * x_hat) [+ dh]

    dweight = sum over rows of dz * x_hat,  dbias = sum of dz,  dpre_bias = sum of dx
    dscale  = sum over the rows of a sample of dm * z,  dshift = sum of dm

Without scale and shift, m is z and dm is dz.

A gate is a factor, G = gate_activation(gate), of y or, if GATE_FIRST, of h:

    y = activation(m) * G      dgate = dy * activation(m) * G',  and dy * G takes the place of dy
    u = h * G                  x_hat is that of u, and dx above is du:  dgate = du * h * G',  dx = du * G [+ dh]

With a residual_gate, the dx above is the gradient of h and of the residual:

    h = residual_gate * (x [+ pre_bias]) + residual
    dx_of_x = dx * residual_gate,  dresidual_gate = sum over the rows of a sample of dx * (x [+ pre_bias])

The kernels of ``backward/`` compute ``a``, ``b``, ``dx`` and the sums over rows, because how they do depends on where a
row is.

Where ROUND_X_HAT_TO names a dtype, the weight is multiplied with the rounded ``x_hat``: dweight uses the rounded one.
The gradient of the rounding itself is the identity, as in autograd.
"""

import triton
import triton.language as tl

from .activations import activate, activation_gradient, gate_and_slope
from .affine import affine, before_gate, modulate, round_x_hat, scale, weigh
from .memory import round_to, store_row


@triton.jit
def gradient_before_affine(
    dy,
    x_hat,
    gate,
    parameters,
    C: tl.constexpr,
    SPEC: tl.constexpr,
    PRECISE: tl.constexpr,
    LATENCY_HIDDEN: tl.constexpr = False,
):
    """(``round_x_hat(x_hat)``, dz, g, dm * z, dm, dgate) with chunk C of the parameters and of the gate.

    ``dm * z`` and ``dm`` are for dscale and dshift. All are 0 outside the row, because ``dy`` and ``x_hat`` are. The
    last two constants are ``activation_gradient``'s. gate: in COMPUTE_DTYPE, an empty tuple where there is none; dgate
    is that of a gate of y.
    """
    rounded_x_hat = round_x_hat(x_hat, SPEC)
    dgate = dy
    if len(gate) > 0 and not SPEC.GATE_FIRST:
        factor, slope = gate_and_slope(gate[C], SPEC.GATE_ACTIVATION, PRECISE)
        m = modulate(affine(rounded_x_hat, parameters, C, SPEC), parameters, C, SPEC)
        y = before_gate(activate(m, SPEC.ACTIVATION, PRECISE), parameters, C, SPEC)
        dgate = dy * y * slope
        dy *= round_to(factor, SPEC.ROUND_EACH_TO, SPEC.COMPUTE_DTYPE)
    if SPEC.ACTIVATION is not None:
        m = modulate(affine(rounded_x_hat, parameters, C, SPEC), parameters, C, SPEC)
        dm = activation_gradient(dy, m, SPEC.ACTIVATION, PRECISE, LATENCY_HIDDEN)
    else:
        dm = dy
    if len(parameters.scale) > 0:
        dz = scale(dm, parameters, C, SPEC)
        dscale = dm * affine(rounded_x_hat, parameters, C, SPEC)
    else:
        dz = dm
        dscale = dm
    return rounded_x_hat, dz, weigh(dz, parameters, C, SPEC), dscale, dm, dgate


@triton.jit
def gradient_before_gate(du, h, gate, C: tl.constexpr, SPEC: tl.constexpr, PRECISE: tl.constexpr):
    """(``du * G``, dgate) of a gate of h, chunk C, in COMPUTE_DTYPE."""
    factor, slope = gate_and_slope(gate[C], SPEC.GATE_ACTIVATION, PRECISE)
    factor = round_to(factor, SPEC.ROUND_EACH_TO, SPEC.COMPUTE_DTYPE)
    return du * factor, du * h * slope


@triton.jit
def store_dx(dx_ptr, dresidual_ptr, offsets, dx, dresidual, ok):
    """Store the gradient of x and of the residual; a None pointer is skipped."""
    if dx_ptr is not None:
        store_row(dx_ptr + offsets, dx, ok)
    if dresidual_ptr is not None:
        store_row(dresidual_ptr + offsets, dresidual, ok)
