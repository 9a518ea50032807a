"""A grid whose programs share rows: each sends two numbers a row to all others through global memory.

Rows too wide for a cluster are shared by programs all over the GPU. What they have in common is L2, where a number
takes 2 to 3 microseconds from one multiprocessor to another: far too long to wait for, so nobody does. A program sends
the sums of its part of a row, goes on with the next ones, and asks for what it has been sent some rows later.

    mail   (n_rows, n_parts) words of 64 bits, two fp32 numbers each, from the program with that part of that row

A word is its own flag. The mail is all 0 when the grid starts, and what is sent never is: where both numbers are 0, the
first is sent as -0. So there is no counter, no fence and no order among words to care for; a word is written once and
read as it is, whole, or as 0: then it is asked for again.

Whoever waits for a program that has not started waits for ever. The launch must be a cooperative one: it starts all
programs at once, or fails.

Tiles are no good for asking: the compiler may compute a tile twice, in two layouts, and with it everything that made
it. So words are asked for by threads. What `_thread` gives looks like a scalar but is another number in every thread;
the warps of a program share the words of a row, add theirs, and meet in shared memory.
"""

import triton
import triton.language as tl

from .target import INTERPRETED


@triton.jit
def send(slot, a, b, ok):
    """Two numbers, (1, 1) each as are the others here, to their ``slot`` in the mail."""
    first = a.to(tl.uint32, bitcast=True).to(tl.uint64)
    second = b.to(tl.uint32, bitcast=True).to(tl.uint64)
    word = first | (second << 32)
    word = tl.where(word == 0, 0x80000000, word).to(tl.int64, bitcast=True)
    # A store that others may read while it is made, in Triton's words: an exchange whose answer nobody wants. A plain
    # store stays behind for so long that others wait for it.
    tl.atomic_xchg(slot, word, mask=ok, sem="relaxed", scope="gpu")


@triton.jit
def open_box():
    """The address of shared memory where warps meet: two rooms, used in turn, for a pair from each of 16 warps."""
    if INTERPRETED:
        return 0
    else:
        return tl.inline_asm_elementwise(
            """
            {
            .shared .align 16 .b8 box[256];
            mov.u32 $0, box;
            }
            """,
            "=r",
            [],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def ask(mail_ptr, row, n_rows, n_parts, PARTS: tl.constexpr, WARPS: tl.constexpr):
    """This thread's words of a row, as they are now; 0 where there is none, or not yet.

    PARTS is ``n_parts``, or a little more: nothing is compiled for every number. WARPS is that of the program.
    """
    words = ()
    if not INTERPRETED:
        address, n_wanted = _post(mail_ptr, row, n_rows, n_parts)
        STEP: tl.constexpr = 32 * WARPS
        for i in tl.static_range((PARTS + STEP - 1) // STEP):
            words = words + (_word(address + i * 8 * STEP, (n_wanted > i * STEP).to(tl.int32)),)
    return words


@triton.jit
def received_sums(
    words,
    box,
    turn,
    mail_ptr,
    row,
    n_rows,
    n_parts,
    PARTS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Both numbers of a row, summed over all parts in a fixed order: the same bits in every program.

    words: what ``ask`` gave for this row. Whatever was not there is waited for.
    """
    if INTERPRETED:  # one program after another: there is one part
        own = row + tl.arange(0, 1)[:, None]
        return _pair(tl.load(mail_ptr + own, mask=(own >= 0) & (own < n_rows), other=0))
    else:
        address, n_wanted = _post(mail_ptr, row, n_rows, n_parts)
        STEP: tl.constexpr = 32 * WARPS
        sum_a = 0.0
        sum_b = 0.0
        for i in tl.static_range((PARTS + STEP - 1) // STEP):
            wanted = (n_wanted > i * STEP).to(tl.int32)
            a, b = _pair(_settled(words[i], address + i * 8 * STEP, wanted))
            sum_a += a
            sum_b += b
        room = box + (turn % 2) * 128
        _put_sums_of_warp(sum_a, sum_b, room + _thread() // 32 * 8)
        _meet()
        slot = room + tl.arange(0, 1)[:, None]
        a, b = _take(slot)
        for i in tl.static_range(1, min(WARPS, (PARTS + 31) // 32)):
            more_a, more_b = _take(slot + 8 * i)
            a += more_a
            b += more_b
        return a, b


@triton.jit
def _post(mail_ptr, row, n_rows, n_parts):
    """(address of this thread's first word, how many words of the row lie there and beyond)."""
    part = _thread()
    address = tl.cast(mail_ptr, tl.int64) + (row * n_parts + part) * 8
    return address, tl.where((row >= 0) & (row < n_rows), n_parts - part, 0)


@triton.jit
def _pair(word):
    first = word.to(tl.int32).to(tl.float32, bitcast=True)
    second = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return first, second


@triton.jit
def _thread():
    return tl.inline_asm_elementwise(
        "mov.u32 $0, %tid.x;", "=r", [], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _word(address, wanted):
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
def _settled(word, address, wanted):
    """The word, asked for again until it is there. The lanes of a warp wait together: they shuffle next.

    A loop of the compiler's would do, were it not inside another one, which is then no longer pipelined.
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
def _put_sums_of_warp(a, b, slot):
    """Both numbers, summed over the lanes of a warp, to its ``slot`` in shared memory."""
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
def _meet():
    """Until all warps are here. Triton's own barrier would keep the loop around it from being pipelined."""
    tl.inline_asm_elementwise(
        "bar.sync 0; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _take(slot):
    return tl.inline_asm_elementwise(
        "ld.shared.v2.f32 {$0, $1}, [$2];",
        "=f,=f,r",
        [slot],
        dtype=(tl.float32, tl.float32),
        is_pure=False,
        pack=1,
    )
