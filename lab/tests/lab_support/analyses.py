"""An analysis with made-up figures."""

from rownorm_lab.data.analyses import Analysis, KernelAnalysis, TensorTraffic
from rownorm_lab.data.case import Case


def made_up(block=None, width=8):
    """RMSNorm of 8 x 64 on an H200; ``width``: bytes of one thread's access."""
    tensor = TensorTraffic(
        tensor="x", kind="load", bytes_per_thread=width, requests=8, sectors=64, passes=1.0,
        sector_use=1.0,
    )  # fmt: skip
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
