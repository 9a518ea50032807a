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

The kernels of ``backward/`` compute ``a``, ``b``, ``dx`` and the sums over rows, because how they do depends on where a
row is.

Where ROUND_X_HAT_TO names a dtype, the weight is multiplied with the rounded ``x_hat``: dweight uses the rounded one.
The gradient of the rounding itself is the identity, as in autograd.
"""

import triton
import triton.language as tl

from .activations import activation_gradient
from .affine import affine, modulate, round_x_hat, scale, weigh
from .memory import store_row


@triton.jit
def gradient_before_affine(
    dy,
    x_hat,
    parameters,
    C: tl.constexpr,
    SPEC: tl.constexpr,
    PRECISE: tl.constexpr,
    LATENCY_HIDDEN: tl.constexpr = False,
):
    """(``round_x_hat(x_hat)``, dz, g, dm * z, dm) with chunk C of the parameters.

    The last two are for dscale and dshift. All are 0 outside the row, because ``dy`` and ``x_hat`` are. The last two
    constants are ``activation_gradient``'s.
    """
    rounded_x_hat = round_x_hat(x_hat, SPEC)
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
    return rounded_x_hat, dz, weigh(dz, parameters, C, SPEC), dscale, dm


@triton.jit
def store_dx(dx_ptr, dresidual_ptr, offsets, dx, ok):
    """Store the gradient of x and of the residual, which differ in dtype only; a None pointer is skipped."""
    if dx_ptr is not None:
        store_row(dx_ptr + offsets, dx, ok)
    if dresidual_ptr is not None:
        store_row(dresidual_ptr + offsets, dx, ok)
