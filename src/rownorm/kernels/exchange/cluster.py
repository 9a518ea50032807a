"""Exchange inside a thread block cluster: its programs send each other two numbers at a time through shared memory.

NVIDIA GPUs from sm_90 on start programs in clusters that can write to each other's shared memory. Triton has no
operation for this: ``launch`` starts CLUSTER_SIZE programs as a cluster, and the exchange is inline PTX. Every program
has message slots in its shared memory, a double buffer, so that a fast program cannot overwrite what a slow one reads:

    buffer 0   up to 32 pairs of fp32, one slot for each sender      byte   0
    buffer 1   the same                                              byte 256
    two mbarriers, one for each buffer                               byte 512

Senders are the programs of the cluster, or their warps. A pair is sent to all programs at once (``st.async``) and
counts at the receiver's mbarrier, which completes when all pairs have arrived. There is no fence, no flush of L1 and no
barrier of the whole cluster between two turns: they cost more than the exchange. There is none at the end either: a
program that has received all pairs of the last turn is sent nothing more, and what it sent arrives without it.

Two buffers suffice only if no warp of a program is two turns behind another warp. So what a program sends must come
from a reduction that synchronizes all its warps, such as the sums over a tile as wide as the program, or the program
has one warp. Warps that send for themselves wait for each other's pairs in every turn.
"""

import triton
import triton.language as tl

MAX_SENDERS = tl.constexpr(32)


@triton.jit
def open_slots():
    """The shared-memory address of this program's message slots. ``wait_for_cluster`` must follow before a ``send``."""
    return tl.inline_asm_elementwise(
        """
        {
        .shared .align 16 .b8 message_slots[528];
        .reg .pred first;
        .reg .b32 address, thread;
        mov.u32 address, message_slots;
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
    """Wait until every program of the cluster has opened its message slots."""
    tl.inline_asm_elementwise(
        "barrier.cluster.wait.aligned; mov.u32 $0, 0;",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def send(slots, first, second, turn):
    """Send two fp32 numbers to every program of the cluster, this one included. Turns count from 0."""
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred counts, sends;
        .reg .b32 buffer, barrier, own, there, there_barrier, thread, rank, cluster_size, bytes;
        and.b32 buffer, $4, 1;
        mad.lo.u32 barrier, buffer, 8, $1;
        add.u32 barrier, barrier, 512;
        mad.lo.u32 buffer, buffer, 256, $1;
        mov.u32 thread, %tid.x;
        mov.u32 rank, %cluster_ctarank;
        mov.u32 cluster_size, %cluster_nctarank;
        mul.lo.u32 bytes, cluster_size, 8;
        mad.lo.u32 own, rank, 8, buffer;
        setp.eq.u32 counts, thread, 0;
        @counts mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes;
        setp.lt.u32 sends, thread, cluster_size;
        @sends mapa.shared::cluster.u32 there, own, thread;
        @sends mapa.shared::cluster.u32 there_barrier, barrier, thread;
        @sends st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {$2, $3}, [there_barrier];
        mov.u32 $0, 0;
        }
        """,
        "=r,r,f,f,r",
        [slots, first, second, turn],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.constexpr_function
def _from_warps(count):
    """(PTX, constraints) that add up two times ``count`` numbers of a thread, then those of a warp, and send both sums.

    Every operand is passed ``count`` times, so address and turn are one operand: the buffer is in the lowest bit of the
    address. The lower half of a warp reduces the first numbers, the upper half the second ones, which takes as many
    steps as reducing one of them.
    """
    outputs = count // 4  # int8 results, which are not used
    first, second, slots = (outputs + k * count for k in range(3))

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
        .reg .b32 buffer, barrier, own, there, there_barrier, thread, warp, lane, rank, cluster_size, senders, bytes;
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
        and.b32 buffer, ${slots}, 1;
        sub.u32 own, ${slots}, buffer;
        mad.lo.u32 barrier, buffer, 8, own;
        add.u32 barrier, barrier, 512;
        mad.lo.u32 buffer, buffer, 256, own;
        mov.u32 rank, %cluster_ctarank;
        mov.u32 cluster_size, %cluster_nctarank;
        mov.u32 senders, %ntid.x;
        shr.u32 senders, senders, 5;
        shr.u32 warp, thread, 5;
        mad.lo.u32 warp, rank, senders, warp;
        mad.lo.u32 own, warp, 8, buffer;
        @!lower add.u32 own, own, 4;
        mul.lo.u32 bytes, cluster_size, senders;
        mul.lo.u32 bytes, bytes, 8;
        setp.eq.u32 counts, thread, 0;
        @counts mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes;
        and.b32 lane, lane, 15;
        setp.lt.u32 sends, lane, cluster_size;
        @sends mapa.shared::cluster.u32 there, own, lane;
        @sends mapa.shared::cluster.u32 there_barrier, barrier, lane;
        @sends st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], sum, [there_barrier];
        {" ".join(f"mov.u32 ${k}, 0;" for k in range(outputs))}
        }}
        """
    return asm, ",".join(["=r"] * outputs + ["f"] * (2 * count) + ["r"] * count)


@triton.jit
def send_from_warps(slots, first, second, turn, NUM_WARPS: tl.constexpr):
    """Send the sums of two tiles, (1, columns), over the columns of each warp to every program of the cluster.

    A warp does not wait for the other warps of its program, which is a third of the time from a tile to its sums. Every
    column must belong to exactly one thread, so each thread needs at least 4 columns; which ones does not matter.
    """
    COUNT: tl.constexpr = first.shape[1] // (32 * NUM_WARPS)
    ASM: tl.constexpr = _from_warps(COUNT)[0]
    CONSTRAINTS: tl.constexpr = _from_warps(COUNT)[1]
    tl.inline_asm_elementwise(
        ASM,
        CONSTRAINTS,
        [first, second, slots + (turn & 1)],
        dtype=tl.int8,
        is_pure=False,
        pack=COUNT,
    )


@triton.jit
def receive(slots, turn):
    """Wait for the numbers of this turn; returns the address of their buffer."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .pred here;
        .reg .b32 buffer, barrier, phase;
        shr.u32 phase, $2, 1;
        and.b32 phase, phase, 1;
        and.b32 buffer, $2, 1;
        mad.lo.u32 barrier, buffer, 8, $1;
        add.u32 barrier, barrier, 512;
        again:
        mbarrier.try_wait.parity.shared::cta.b64 here, [barrier], phase;
        @!here bra again;
        mad.lo.u32 $0, buffer, 256, $1;
        }
        """,
        "=r,r,r",
        [slots, turn],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _load_two_pairs(buffer, index):
    """Pairs 2 * index and 2 * index + 1 of a buffer, for a tensor of indices: four tensors of numbers."""
    return tl.inline_asm_elementwise(
        "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];",
        "=f,=f,=f,=f,r",
        [buffer + 16 * index],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=False,
        pack=1,
    )


@triton.jit
def received_sums(slots, turn, NUM_SENDERS: tl.constexpr):
    """Wait for both numbers of all senders and add them up in a fixed order: the same bits in every program."""
    first, second, third, fourth = _load_two_pairs(
        receive(slots, turn), tl.arange(0, NUM_SENDERS // 2)
    )
    return tl.sum(first + third), tl.sum(second + fourth)
