"""Exchange all over the grid: each program sends two numbers per row to all others through global memory.

Rows too wide for a cluster are shared by programs all over the GPU, which have L2 in common. A number takes 2 to 3 µs
through L2 from one SM to another: far too long to wait for. So a program sends the sums of its part of a row, continues
with the next rows, and fetches what it was sent some rows later.

    messages   (n_rows, n_parts) words of 64 bits, two fp32 numbers each, from the program with that part of that row

A word is its own flag. All words are 0 when the grid starts, and no message is 0: where both numbers are 0, the first
is sent as -0. So there is no counter, no fence, and no order among words to keep. A word is written once, and a load
returns either all of it or 0; in that case it is loaded again.

A program that waits for one that has not started waits forever. So the launch must be cooperative: it starts all
programs at once, or fails.

Messages are fetched by threads, not as a tile, because the compiler may compute a tile twice, in two layouts, together
with the loads it comes from. ``_thread`` looks like a scalar to Triton but is a different number in every thread. The
threads of a program share the words of a row. Each warp adds up its words, and the warps meet in shared memory.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..target import INTERPRETED


class Messages(NamedTuple):
    """The messages of all rows."""

    ptr: Any  # (n_rows, n_parts) words of 64 bits
    n_rows: Any
    n_parts: Any


@triton.jit
def send(messages, row, part, a, b, ok):
    """Send two numbers of a row, (1, 1) each, from the program with this part. Nothing is sent if ``ok`` is false."""
    slot = messages.ptr + row * messages.n_parts + (part + tl.arange(0, 1)[:, None])
    first = a.to(tl.uint32, bitcast=True).to(tl.uint64)
    second = b.to(tl.uint32, bitcast=True).to(tl.uint64)
    word = first | (second << 32)
    word = tl.where(word == 0, 0x80000000, word).to(tl.int64, bitcast=True)
    # A relaxed atomic store, which Triton has only as an exchange. A plain store becomes visible much later.
    tl.atomic_xchg(slot, word, mask=ok, sem="relaxed", scope="gpu")


@triton.jit
def open_slots():
    """The address of shared memory for the sums of warps: a double buffer with a slot for each of 16 warps."""
    if INTERPRETED:
        return 0
    else:
        return tl.inline_asm_elementwise(
            """
            {
            .shared .align 16 .b8 warp_sums[256];
            mov.u32 $0, warp_sums;
            }
            """,
            "=r",
            [],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def fetch(messages, row, BLOCK_PARTS: tl.constexpr, NUM_WARPS: tl.constexpr):
    """This thread's words of a row as they are now: 0 where a message has not arrived or does not exist.

    BLOCK_PARTS: ``n_parts`` rounded up to a power of two, so that few kernels are compiled.
    """
    words = ()
    if not INTERPRETED:
        address, n_wanted = _words_of_thread(messages, row)
        STEP: tl.constexpr = 32 * NUM_WARPS
        for i in tl.static_range((BLOCK_PARTS + STEP - 1) // STEP):
            wanted = (n_wanted > i * STEP).to(tl.int32)
            words = words + (_load_word(address + i * 8 * STEP, wanted),)
    return words


@triton.jit
def received_sums(
    words,
    slots,
    turn,
    messages,
    row,
    BLOCK_PARTS: tl.constexpr,
    NUM_WARPS: tl.constexpr,
):
    """Both numbers of a row, summed over all parts in a fixed order: the same bits in every program.

    words: from ``fetch`` for this row; what had not arrived is waited for. slots: from ``open_slots``.
    """
    if INTERPRETED:  # Programs run one after another, so there is one part.
        index = row + tl.arange(0, 1)[:, None]
        ok = (index >= 0) & (index < messages.n_rows)
        return _unpack_word(tl.load(messages.ptr + index, mask=ok, other=0))
    else:
        address, n_wanted = _words_of_thread(messages, row)
        STEP: tl.constexpr = 32 * NUM_WARPS
        sum_a = 0.0
        sum_b = 0.0
        for i in tl.static_range((BLOCK_PARTS + STEP - 1) // STEP):
            wanted = (n_wanted > i * STEP).to(tl.int32)
            a, b = _unpack_word(_wait_for_word(words[i], address + i * 8 * STEP, wanted))
            sum_a += a
            sum_b += b
        buffer = slots + (turn % 2) * 128
        _store_warp_sums(sum_a, sum_b, buffer + _thread() // 32 * 8)
        _synchronize()
        slot = buffer + tl.arange(0, 1)[:, None]
        a, b = _load_pair(slot)
        for i in tl.static_range(1, min(NUM_WARPS, (BLOCK_PARTS + 31) // 32)):
            next_a, next_b = _load_pair(slot + 8 * i)
            a += next_a
            b += next_b
        return a, b


@triton.jit
def _words_of_thread(messages, row):
    """(address of this thread's first word of a row, how many words of the row are there and beyond)."""
    part = _thread()
    address = tl.cast(messages.ptr, tl.int64) + (row * messages.n_parts + part) * 8
    row_ok = (row >= 0) & (row < messages.n_rows)
    return address, tl.where(row_ok, messages.n_parts - part, 0)


@triton.jit
def _unpack_word(word):
    """The two fp32 numbers of a message."""
    first = word.to(tl.int32).to(tl.float32, bitcast=True)
    second = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return first, second


@triton.jit
def _thread():
    """The index of this thread in its program."""
    return tl.inline_asm_elementwise(
        "mov.u32 $0, %tid.x;", "=r", [], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _load_word(address, wanted):
    """The word at ``address`` as it is now; 0 if it is not wanted."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .pred wanted;
        setp.ne.s32 wanted, $2, 0;
        mov.b64 $0, 0;
        @wanted ld.relaxed.gpu.global.b64 $0, [$1];
        }
        """,
        "=&l,l,r",
        [address, wanted],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _wait_for_word(word, address, wanted):
    """The word, loaded again until it is not 0. The lanes of a warp wait together, because they shuffle next.

    The loop is in PTX because Triton does not pipeline a loop that contains another one.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .pred waits, any;
        mov.b64 $0, $1;
        setp.ne.s32 waits, $3, 0;
        setp.eq.and.s64 waits, $0, 0, waits;
        vote.sync.any.pred any, waits, -1;
        @!any bra done;
        again:
        @waits ld.relaxed.gpu.global.b64 $0, [$2];
        setp.eq.and.s64 waits, $0, 0, waits;
        vote.sync.any.pred any, waits, -1;
        @any bra again;
        done:
        }
        """,
        "=&l,l,l,r",
        [word, address, wanted],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _store_warp_sums(a, b, slot):
    """Store both numbers, summed over the lanes of a warp, in the warp's ``slot`` of shared memory."""
    tl.inline_asm_elementwise(
        """
        {
        .reg .f32 a, b, c, d;
        .reg .b32 lane;
        .reg .pred first;
        mov.f32 a, $1;
        mov.f32 b, $2;
        shfl.sync.bfly.b32 c, a, 16, 31, -1;
        shfl.sync.bfly.b32 d, b, 16, 31, -1;
        add.f32 a, a, c;
        add.f32 b, b, d;
        shfl.sync.bfly.b32 c, a, 8, 31, -1;
        shfl.sync.bfly.b32 d, b, 8, 31, -1;
        add.f32 a, a, c;
        add.f32 b, b, d;
        shfl.sync.bfly.b32 c, a, 4, 31, -1;
        shfl.sync.bfly.b32 d, b, 4, 31, -1;
        add.f32 a, a, c;
        add.f32 b, b, d;
        shfl.sync.bfly.b32 c, a, 2, 31, -1;
        shfl.sync.bfly.b32 d, b, 2, 31, -1;
        add.f32 a, a, c;
        add.f32 b, b, d;
        shfl.sync.bfly.b32 c, a, 1, 31, -1;
        shfl.sync.bfly.b32 d, b, 1, 31, -1;
        add.f32 a, a, c;
        add.f32 b, b, d;
        mov.u32 lane, %laneid;
        setp.eq.u32 first, lane, 0;
        @first st.shared.v2.f32 [$3], {a, b};
        mov.u32 $0, 0;
        }
        """,
        "=r,f,f,r",
        [a, b, slot],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _synchronize():
    """Wait until all warps are here. Triton does not pipeline a loop that contains its own barrier."""
    tl.inline_asm_elementwise(
        "bar.sync 0; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _load_pair(slot):
    """The two numbers of a slot in shared memory."""
    return tl.inline_asm_elementwise(
        "ld.shared.v2.f32 {$0, $1}, [$2];",
        "=f,=f,r",
        [slot],
        dtype=(tl.float32, tl.float32),
        is_pure=False,
        pack=1,
    )
