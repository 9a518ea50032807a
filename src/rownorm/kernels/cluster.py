"""A cluster: programs on neighbouring multiprocessors that send each other two numbers at a time.

NVIDIA GPUs from sm_90 on start programs in clusters that can write to each other's shared memory. Triton has no words
for this: a launch with CLUSTER programs to a cluster is arranged by ``launch``, and what the programs do is PTX. Every
program has a mailbox with two rooms, used in turn, so that a fast neighbour cannot overwrite what a slow one reads:

    room 0   up to 32 pairs of fp32, one from each sender        byte   0
    room 1   the same                                            byte 256
    two barriers, one a room: open when all pairs have come      byte 512

Senders are the members of the cluster, or their warps. A pair is sent to all members at once (``st.async``), and its
arrival counts at the receiver's barrier. No fence, no flush of L1, no barrier of the whole cluster stands between two
turns: those cost more than the numbers. Nor at the end: who has all pairs of the last turn is sent nothing more, and
what it sent itself is on its way without it.

Two rooms are enough only if no warp of a program lags two turns behind another. What a member sends must therefore come
from a reduction in which all its warps meet, as the sums over a tile do that is as wide as the program; or there is one
warp. Warps that send for themselves wait for each other's pairs in every turn.
"""

import triton
import triton.language as tl

MOST_SENDERS = tl.constexpr(32)


@triton.jit
def open_mailbox():
    """The address of this program's mailbox. Call ``wait_for_cluster`` before anything is sent."""
    return tl.inline_asm_elementwise(
        """
        {
        .shared .align 16 .b8 mailbox[528];
        .reg .pred first;
        .reg .b32 address, thread;
        mov.u32 address, mailbox;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        @first mbarrier.init.shared::cta.b64 [address+512], 1;
        @first mbarrier.init.shared::cta.b64 [address+520], 1;
        @first fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed.aligned;
        mov.u32 $0, address;
        }
        """,
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait_for_cluster():
    """Until every member has opened its mailbox."""
    tl.inline_asm_elementwise(
        "barrier.cluster.wait.aligned; mov.u32 $0, 0;",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def send(mailbox, first, second, turn):
    """Two fp32 numbers to every member of the cluster, this one included. Turns count from 0."""
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred counts, sends;
        .reg .b32 room, barrier, own, there, there_barrier, thread, rank, members, bytes;
        and.b32 room, $4, 1;
        mad.lo.u32 barrier, room, 8, $1;
        add.u32 barrier, barrier, 512;
        mad.lo.u32 room, room, 256, $1;
        mov.u32 thread, %tid.x;
        mov.u32 rank, %cluster_ctarank;
        mov.u32 members, %cluster_nctarank;
        mul.lo.u32 bytes, members, 8;
        mad.lo.u32 own, rank, 8, room;
        setp.eq.u32 counts, thread, 0;
        @counts mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes;
        setp.lt.u32 sends, thread, members;
        @sends mapa.shared::cluster.u32 there, own, thread;
        @sends mapa.shared::cluster.u32 there_barrier, barrier, thread;
        @sends st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {$2, $3}, [there_barrier];
        mov.u32 $0, 0;
        }
        """,
        "=r,r,f,f,r",
        [mailbox, first, second, turn],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.constexpr_function
def _from_warps(count):
    """(PTX, constraints) that add up ``count`` numbers of a thread, twice, then those of a warp, and send both sums.

    Every operand comes ``count`` times, so the mailbox and the turn are one: its address, and its room in the last bit.
    The lower half of a warp adds up the first numbers, the upper half the second ones: as many steps for both as for
    one.
    """
    outputs = count // 4  # bytes that nobody reads
    first, second, place = (outputs + k * count for k in range(3))

    def added(name, start):
        lines = [f"mov.f32 {name}, ${start};"]
        return lines + [f"add.f32 {name}, {name}, ${start + k};" for k in range(1, count)]

    halved = []
    for step in (8, 4, 2, 1):
        halved.append(f"shfl.sync.bfly.b32 other, sum, {step}, 31, 0xffffffff;")
        halved.append("add.f32 sum, sum, other;")
    asm = f"""
        {{
        .reg .pred counts, sends, lower;
        .reg .b32 room, barrier, own, there, there_barrier, thread, warp, lane, rank, members, senders, bytes;
        .reg .f32 first, second, sum, other;
        {" ".join(added("first", first) + added("second", second))}
        mov.u32 thread, %tid.x;
        and.b32 lane, thread, 31;
        setp.lt.u32 lower, lane, 16;
        selp.f32 sum, first, second, lower;
        selp.f32 other, second, first, lower;
        shfl.sync.bfly.b32 other, other, 16, 31, 0xffffffff;
        add.f32 sum, sum, other;
        {" ".join(halved)}
        and.b32 room, ${place}, 1;
        sub.u32 own, ${place}, room;
        mad.lo.u32 barrier, room, 8, own;
        add.u32 barrier, barrier, 512;
        mad.lo.u32 room, room, 256, own;
        mov.u32 rank, %cluster_ctarank;
        mov.u32 members, %cluster_nctarank;
        mov.u32 senders, %ntid.x;
        shr.u32 senders, senders, 5;
        shr.u32 warp, thread, 5;
        mad.lo.u32 warp, rank, senders, warp;
        mad.lo.u32 own, warp, 8, room;
        @!lower add.u32 own, own, 4;
        mul.lo.u32 bytes, members, senders;
        mul.lo.u32 bytes, bytes, 8;
        setp.eq.u32 counts, thread, 0;
        @counts mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes;
        and.b32 lane, lane, 15;
        setp.lt.u32 sends, lane, members;
        @sends mapa.shared::cluster.u32 there, own, lane;
        @sends mapa.shared::cluster.u32 there_barrier, barrier, lane;
        @sends st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], sum, [there_barrier];
        {" ".join(f"mov.u32 ${k}, 0;" for k in range(outputs))}
        }}
        """
    return asm, ",".join(["=r"] * outputs + ["f"] * (2 * count) + ["r"] * count)


@triton.jit
def send_from_warps(mailbox, first, second, turn, NUM_WARPS: tl.constexpr):
    """The sums of two tiles, (1, columns), over what each warp has of them, to every member of the cluster.

    A warp does not wait for the others of its program, which is a third of the way from a tile to its sums. Which
    columns a thread has does not matter, as long as every column is one thread's: there are 4 for each at least.
    """
    COUNT: tl.constexpr = first.shape[1] // (32 * NUM_WARPS)
    ASM: tl.constexpr = _from_warps(COUNT)[0]
    CONSTRAINTS: tl.constexpr = _from_warps(COUNT)[1]
    tl.inline_asm_elementwise(
        ASM,
        CONSTRAINTS,
        [first, second, mailbox + (turn & 1)],
        dtype=tl.int8,
        is_pure=False,
        pack=COUNT,
    )


@triton.jit
def receive(mailbox, turn):
    """Wait for the numbers of this turn; gives the room that holds them."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .pred here;
        .reg .b32 room, barrier, phase;
        shr.u32 phase, $2, 1;
        and.b32 phase, phase, 1;
        and.b32 room, $2, 1;
        mad.lo.u32 barrier, room, 8, $1;
        add.u32 barrier, barrier, 512;
        again:
        mbarrier.try_wait.parity.shared::cta.b64 here, [barrier], phase;
        @!here bra again;
        mad.lo.u32 $0, room, 256, $1;
        }
        """,
        "=r,r,r",
        [mailbox, turn],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _two_pairs(room, place):
    """Two neighbouring pairs; numbers, or tensors with a lane for each two pairs, so that sums take few steps."""
    return tl.inline_asm_elementwise(
        "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];",
        "=f,=f,=f,=f,r",
        [room + 16 * place],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=False,
        pack=1,
    )


@triton.jit
def received_sums(mailbox, turn, SENDERS: tl.constexpr):
    """The sums of both numbers over all senders, in a fixed order: the same bits in every member."""
    first, second, third, fourth = _two_pairs(receive(mailbox, turn), tl.arange(0, SENDERS // 2))
    return tl.sum(first + third), tl.sum(second + fourth)
