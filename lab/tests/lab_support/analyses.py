"""Analyses with made-up figures."""

import msgspec

from rownorm_lab.data.analyses import Analysis, KernelAnalysis, TensorTraffic
from rownorm_lab.data.case import Case
from rownorm_lab.data.own_analyses import OwnAnalysis, OwnTraffic
from rownorm_lab.data.user_files import Source

TENSOR = TensorTraffic(
    tensor="x", kind="load", bytes_per_thread=8, requests=8, sectors=64, passes=1.0, sector_use=1.0
)


def made_up(block=None, width=8):
    """RMSNorm of 8 x 64 on an H200; ``width``: bytes of one thread's access."""
    tensor = msgspec.structs.replace(TENSOR, bytes_per_thread=width)
    kernel = KernelAnalysis(
        kernel="forward_resident", programs=8, warps=4, registers=40, registers_allocated=40,
        spilled_bytes=16, shared_bytes=32, occupancy=0.75, programs_per_sm=6,
        limited_by="registers", instructions={"load": 1}, load_widths={width: 1},
        store_widths={width: 1}, isa="sass", tensors=[tensor], load_requests_per_row=64 / width,
        store_requests_per_row=4, load_sectors_per_row=8, store_sectors_per_row=8,
        sectors_per_request=8, sector_bytes=32, sector_use=1.0, passes=1.0, in_flight_bytes=512.0,
        memory_read=1e6, memory_written=1e6, predicted_seconds=2e-6, bound="launch",
    )  # fmt: skip
    return Analysis(
        case=Case(operation="rms_norm", rows=8, cols=64), target="sm_90", device="H200 SXM",
        block=block, plan="resident: 1 x 64 tile", reason="because", triton="3.7.1",
        kernels=[kernel], memory_bytes=2e6, compulsory_bytes=10**6, flops=10**6, intensity=0.5,
        ceiling=4e12, ceiling_source="made up", predicted_seconds=2e-6,
    )  # fmt: skip


def launches(n):
    """``n`` launches of one kernel of a user's file."""
    traffic = OwnTraffic(
        traced_programs=2, tensors=[TENSOR], sector_bytes=32, load_requests_per_program=8,
        store_requests_per_program=4, load_sectors_per_program=8, store_sectors_per_program=8,
        sectors_per_request=8, sector_use=1.0, passes=1.0, in_flight_bytes=512.0, memory_read=1e8,
        memory_written=1e8, compulsory_bytes=2e8, predicted_seconds=1.234e-5, bound="bandwidth",
    )  # fmt: skip
    return [
        OwnAnalysis(
            warps=4,
            registers=40,
            registers_allocated=40,
            spilled_bytes=16,
            shared_bytes=32,
            occupancy=0.75,
            programs_per_sm=6,
            limited_by="registers",
            instructions={"load": 1},
            load_widths={8: 1},
            store_widths={8: 1},
            isa="sass",
            source=Source("mine.py", "my_kernel", ""),
            kernel="my_kernel",
            label=f"BLOCK {64 * i} / num_warps 8",
            launch="x_ptr bf16[8192x4096]",
            grid=(8192, 1, 1),
            target="sm_90",
            device="H200 SXM",
            triton="3.7.1",
            ceiling=4e12,
            ceiling_source="made up",
            traffic=traffic,
            notes=[],
            unknown=[],
        )
        for i in range(1, n + 1)
    ]
