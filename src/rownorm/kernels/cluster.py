"""A cluster: programs on neighbouring multiprocessors that send each other two numbers at a time.

NVIDIA GPUs from sm_90 on start programs in clusters that can write to each other's shared memory. Triton has no words
for this: a launch with CLUSTER programs to a cluster is arranged by ``launch``, and what the programs do is PTX. Every
program has a mailbox with two rooms, used in turn, so that a fast neighbour cannot overwrite what a slow one reads:

    room 0   16 pairs of fp32, one from each member of the cluster        byte   0
    room 1   the same                                                     byte 128
    two barriers, one a room: open when all pairs have come               byte 256

A pair is sent to all members at once (``st.async``), and its arrival counts at the receiver's barrier. No fence, no
flush of L1, no barrier of the whole cluster stands between two turns: those cost more than the numbers. Nor at the end:
who has all pairs of the last turn is sent nothing more, and what it sent itself is on its way without it.

Two rooms are enough only if no warp of a program lags two turns behind another. What is sent must therefore come from a
reduction in which all its warps meet, as the sums over a tile do that is as wide as the program; or there is one warp.
"""

import triton
import triton.language as tl


@triton.jit
def open_mailbox():
    """The address of this program's mailbox. Call ``wait_for_cluster`` before anything is sent."""
    return tl.inline_asm_elementwise(
        """
        {
        .shared .align 16 .b8 mailbox[272];
        .reg .pred first;
        .reg .b32 address, thread;
        mov.u32 address, mailbox;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        @first mbarrier.init.shared::cta.b64 [address+256], 1;
        @first mbarrier.init.shared::cta.b64 [address+264], 1;
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
        add.u32 barrier, barrier, 256;
        mad.lo.u32 room, room, 128, $1;
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
        add.u32 barrier, barrier, 256;
        again:
        mbarrier.try_wait.parity.shared::cta.b64 here, [barrier], phase;
        @!here bra again;
        mad.lo.u32 $0, room, 128, $1;
        }
        """,
        "=r,r,r",
        [mailbox, turn],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _pairs(room, ranks):
    """What these members sent: two numbers, or two tensors with a lane for each member, so that sums take few steps."""
    return tl.inline_asm_elementwise(
        "ld.shared.v2.f32 {$0, $1}, [$2];",
        "=f,=f,r",
        [room + 8 * ranks],
        dtype=(tl.float32, tl.float32),
        is_pure=False,
        pack=1,
    )


@triton.jit
def received_sums(mailbox, turn, CLUSTER: tl.constexpr):
    """The sums of both numbers over the cluster, in a fixed order: the same bits in every member."""
    first, second = _pairs(receive(mailbox, turn), tl.arange(0, CLUSTER))
    return tl.sum(first), tl.sum(second)
