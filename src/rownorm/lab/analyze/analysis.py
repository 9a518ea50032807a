"""``Analysis``: everything that is known about one case on one target, and where each figure comes from."""

from __future__ import annotations

import msgspec

from ..cases.case import Case
from . import isa
from .compile import ROWS, Compilation, Kernel
from .occupancy import occupancy_of
from .roofline import (
    Ceiling,
    Limits,
    ceiling_of,
    kernel_times,
    limits_of,
    memory_bytes,
    running_programs,
)
from .traffic import Traffic, traffic_of

SCHEMA = 1


class TensorTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Accesses of one kernel to one tensor."""

    tensor: str
    kind: str  # load, store, copy (to shared memory), atomic, poll
    bytes_per_thread: int  # vector width
    requests: int  # memory instructions of warps
    sectors: int
    passes: float  # over the whole tensor
    sector_use: float  # bytes that a program needs over the bytes of these sectors; 1: fully coalesced


class KernelAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel."""

    kernel: str
    programs: int
    warps: int  # of a program
    registers: int  # of a thread
    registers_allocated: int
    spilled_bytes: int  # of a thread
    shared_bytes: int  # of a program
    occupancy: float
    programs_per_sm: int
    limited_by: str
    instructions: dict[str, int]  # in the machine code, by kind
    load_widths: dict[int, int]  # bytes of a thread: load instructions of that width in the machine code
    store_widths: dict[int, int]
    isa: str
    tensors: list[TensorTraffic]
    load_requests_per_row: float
    store_requests_per_row: float
    load_sectors_per_row: float
    store_sectors_per_row: float
    sectors_per_request: float
    sector_bytes: int
    sector_use: float  # of the tensors of rows: see TensorTraffic
    passes: float  # over the rows: loads of all row tensors over their size
    in_flight_bytes: float  # of one program
    memory_read: float
    memory_written: float
    predicted_seconds: float
    bound: str  # bandwidth, latency or launch


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A time that the lab's timing measured."""

    seconds: float
    bytes_per_second: float  # compulsory bytes over the time
    ceiling: float | None
    device: str


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """A case on a target. block: of the plain looped kernel; None: rownorm's plan."""

    case: Case
    target: str
    device: str
    block: int | None
    plan: str
    reason: str
    triton: str
    kernels: list[KernelAnalysis]
    memory_bytes: float
    compulsory_bytes: int
    flops: int
    intensity: float  # flops over memory bytes
    ceiling: float  # bytes per second
    ceiling_source: str
    predicted_seconds: float
    measured: Measured | None = None
    schema: int = SCHEMA

    @property
    def label(self) -> str:
        """The analysis in one or two words."""
        return f"loop {self.block}" if self.block else "rownorm"


def analyze(
    compilation: Compilation, block: int | None = None, ceiling: Ceiling | None = None
) -> Analysis:
    """Look at every kernel of a compilation. ceiling: else the shipped one, or the specified peak."""
    import triton

    case, target, plan = compilation.case, compilation.target, compilation.plan
    arch = target.device.arch
    limits = limits_of(target)
    roof = ceiling or ceiling_of(limits, case)
    kernels = [_kernel(one, case, arch, limits, roof) for one in compilation.kernels]
    moved = sum(one.memory_read + one.memory_written for one in kernels)
    return Analysis(
        case=case,
        target=arch,
        device=limits.name,
        block=block,
        plan="a loop over blocks" if plan is None else str(plan),
        reason="" if plan is None else plan.reason,
        triton=triton.__version__,
        kernels=kernels,
        memory_bytes=moved,
        compulsory_bytes=case.compulsory_bytes,
        flops=case.flops,
        intensity=case.flops / moved,
        ceiling=roof.bytes_per_second,
        ceiling_source=roof.source,
        predicted_seconds=sum(one.predicted_seconds for one in kernels),
    )


def _kernel(
    kernel: Kernel, case: Case, arch: str, limits: Limits, ceiling: Ceiling
) -> KernelAnalysis:
    code = isa.default_isa(kernel.compiled)
    lines = isa.lines_of(kernel.compiled, code)
    fits = occupancy_of(kernel, arch)
    traffic = traffic_of(kernel, arch, _row_bytes(kernel, case), case.rows)
    unrolled = isa.unrolling(kernel.compiled)
    running = running_programs(kernel, fits, limits.sms)
    moved = memory_bytes(kernel, traffic, running, limits.l2_bytes, case.rows)
    times = kernel_times(traffic, moved, running, unrolled, ceiling)
    loads, stores = ("load", "copy", "poll"), ("store", "atomic")
    requests = traffic.total("requests", *loads, *stores)
    return KernelAnalysis(
        kernel=kernel.name,
        programs=kernel.n_programs,
        warps=kernel.num_warps,
        registers=kernel.resources.registers,
        registers_allocated=fits.registers,
        spilled_bytes=kernel.resources.spills,
        shared_bytes=fits.shared,
        occupancy=fits.fraction,
        programs_per_sm=fits.programs,
        limited_by=fits.limited_by,
        instructions=isa.counts(lines),
        load_widths=isa.widths(lines, "load"),
        store_widths=isa.widths(lines, "store"),
        isa=code,
        tensors=_tensors(traffic),
        load_requests_per_row=traffic.total("requests", *loads) / case.rows,
        store_requests_per_row=traffic.total("requests", *stores) / case.rows,
        load_sectors_per_row=traffic.total("sectors", *loads) / case.rows,
        store_sectors_per_row=traffic.total("sectors", *stores) / case.rows,
        sectors_per_request=traffic.total("sectors", *loads, *stores) / requests,
        sector_bytes=traffic.sector_bytes,
        sector_use=_sector_use(traffic),
        passes=_passes(traffic),
        in_flight_bytes=traffic.in_flight * unrolled,
        memory_read=moved.read,
        memory_written=moved.written,
        predicted_seconds=max(times),
        bound=times.limited_by,
    )


def _row_bytes(kernel: Kernel, case: Case) -> int:
    """Bytes from a row to the next in the tensors of rows; of the narrowest, if they differ."""
    sizes = [size for name, size in kernel.tensors.items() if name in ROWS]
    return min(sizes, default=case.cols * 4 * case.rows) // case.rows


def _tensors(traffic: Traffic) -> list[TensorTraffic]:
    return [
        TensorTraffic(
            tensor=flow.tensor,
            kind=flow.kind,
            bytes_per_thread=flow.width,
            requests=round(flow.requests),
            sectors=round(flow.sectors),
            passes=flow.passes,
            sector_use=flow.bytes / (flow.sectors * traffic.sector_bytes),
        )
        for flow in traffic.flows
    ]


def _passes(traffic: Traffic) -> float:
    """How many times the rows are loaded."""
    rows = [flow for flow in traffic.flows if flow.tensor in ROWS and flow.kind in ("load", "copy")]
    sizes = sum(flow.tensor_bytes for flow in rows)
    return sum(flow.bytes for flow in rows) / sizes if sizes else 0.0


def _sector_use(traffic: Traffic) -> float:
    """The part of the sectors of rows that programs need. Below 1: misaligned, or loaded by several threads."""
    rows = [flow for flow in traffic.flows if flow.tensor in ROWS] or traffic.flows
    moved = sum(flow.sectors for flow in rows) * traffic.sector_bytes
    return sum(flow.bytes for flow in rows) / moved
