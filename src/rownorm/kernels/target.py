"""What the code that is compiled is for."""

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra import libdevice

# Whether Triton interprets. It then sums with numpy, whose rounding errors grow much faster along any axis but the
# last.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@tl.core.builtin
def on_nvidia(_semantic=None):
    """Whether the code that is compiled is for an NVIDIA GPU, which need not be here. If Triton does not say, no."""
    options = getattr(_semantic.builder, "options", None)
    return tl.constexpr(getattr(options, "backend_name", "") == "cuda")


@triton.jit
def reciprocal(x):
    """``1 / x``; in fp32 within 1 ulp, and 0 where that is subnormal, in one instruction."""
    if INTERPRETED or x.dtype == tl.float64:
        return 1.0 / x
    elif on_nvidia():
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return libdevice.fast_dividef(1.0, x)
