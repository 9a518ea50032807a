"""Numbers of 16 bits that wait in registers, two in a word: a thread that holds many of them has room for others."""

import triton
import triton.language as tl

from .arithmetic import widened


@triton.jit
def packed(x, PACK: tl.constexpr):
    """With PACK, a tile of 16-bit numbers as half as many words of two: so they take half the registers."""
    if PACK:
        low, high = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
        low = low.to(tl.uint16, bitcast=True).to(tl.uint32)
        high = high.to(tl.uint16, bitcast=True).to(tl.uint32)
        return low | (high << 16)
    else:
        return x


@triton.jit
def unpacked(x, DTYPE: tl.constexpr, PACK: tl.constexpr):
    """What was packed, of dtype DTYPE, in fp32.

    For one use of several: the compiler, which would otherwise unpack once and keep the result, in twice the registers,
    is not told that it is the same.
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
        return widened(x, tl.float32)
