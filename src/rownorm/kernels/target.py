"""What the code that is compiled is for."""

import triton.language as tl
from triton import knobs

# Whether Triton interprets. It then sums with numpy, whose rounding errors grow much faster along any axis but the
# last.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@tl.core.builtin
def on_nvidia(_semantic=None):
    """Whether the code that is compiled is for an NVIDIA GPU, which need not be here. If Triton does not say, no."""
    options = getattr(_semantic.builder, "options", None)
    return tl.constexpr(getattr(options, "backend_name", "") == "cuda")
