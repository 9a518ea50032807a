"""16-bit numbers in registers, two to a word: a thread with many of them has registers left for other values."""

import triton
import triton.language as tl

from .memory import widen


@triton.jit
def pack(x, PACK: tl.constexpr):
    """If PACK, a tile of 16-bit numbers as half as many 32-bit words, in half the registers; otherwise ``x``."""
    if PACK:
        low, high = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
        low = low.to(tl.uint16, bitcast=True).to(tl.uint32)
        high = high.to(tl.uint16, bitcast=True).to(tl.uint32)
        return low | (high << 16)
    else:
        return x


@triton.jit
def unpack(x, DTYPE: tl.constexpr, PACK: tl.constexpr):
    """A packed tile of dtype DTYPE, in fp32.

    The words go through inline PTX that the compiler cannot see into. Otherwise it would notice that several uses
    unpack the same words, do it once, and keep the result in twice the registers.
    """
    if PACK:
        words = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=tl.uint32, is_pure=False, pack=1
        )
        if DTYPE == tl.bfloat16:
            low = (words << 16).to(tl.float32, bitcast=True)
            high = (words & 0xFFFF0000).to(tl.float32, bitcast=True)
        else:
            low = (words & 0xFFFF).to(tl.uint16).to(DTYPE, bitcast=True).to(tl.float32)
            high = (words >> 16).to(tl.uint16).to(DTYPE, bitcast=True).to(tl.float32)
        return tl.reshape(tl.join(low, high), (x.shape[0], 2 * x.shape[1]))
    else:
        return widen(x, tl.float32)
