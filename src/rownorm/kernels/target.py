"""What depends on the target: the interpreter, NVIDIA or AMD."""

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra import libdevice

# Whether kernels run in Triton's interpreter. It adds up with numpy, whose rounding errors grow much faster along any
# axis but the last.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@tl.core.builtin
def on_nvidia(_semantic=None):
    """Whether the code is compiled for an NVIDIA GPU, on whatever machine; False if Triton does not say."""
    options = getattr(_semantic.builder, "options", None)
    return tl.constexpr(getattr(options, "backend_name", "") == "cuda")


@triton.jit
def reciprocal(x):
    """``1 / x``. In fp32 one instruction, accurate to 1 ulp; a subnormal result is flushed to 0."""
    if INTERPRETED or x.dtype == tl.float64:
        return 1.0 / x
    elif on_nvidia():
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return libdevice.fast_dividef(1.0, x)
