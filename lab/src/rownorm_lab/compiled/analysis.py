"""From compiled kernels to an ``Analysis``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rownorm.inside import Target

from ..data.analyses import Analysis, KernelAnalysis, TensorTraffic
from ..data.case import Case
from ..measure.bench import in_one_line
from . import isa
from .accesses import Kind
from .compile import ROWS, Compilation, CompiledKernel, compile_case
from .launched import compile_loop
from .occupancy import Occupancy, occupancy_of
from .roofline import (
    Ceiling,
    Limits,
    MemoryBytes,
    Times,
    ceiling_of,
    kernel_times,
    limits_of,
    memory_bytes,
    running_programs,
)
from .trace import Unresolved
from .traffic import Traffic, traffic_of


def analyses_of(
    case: Case,
    target: Target,
    blocks: Sequence[int] = (),
    ceiling: Ceiling | None = None,
    measure: bool = False,
) -> tuple[list[Analysis], list[str]]:
    """rownorm's plan, then the plain loop with each block size; and what could not be compiled or traced, and why.

    measure: also time them on this machine's GPU.
    """
    found, failures = list[Analysis](), list[str]()
    for block in (None, *blocks):
        try:
            one = compile_case(case, target) if block is None else compile_loop(case, block, target)
            found.append(analyze(one, block, ceiling))
        except Exception as error:  # of the compiler, whatever its type
            what = "rownorm" if block is None else f"loop {block}"
            why = str(error) if isinstance(error, Unresolved) else in_one_line(error)
            failures.append(f"{what} on {target.device.arch}: {why}")
    if measure and found:
        from .measured import measured

        found = measured(found)
    return found, failures


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
    kernel: CompiledKernel, case: Case, arch: str, limits: Limits, ceiling: Ceiling
) -> KernelAnalysis:
    fits = occupancy_of(kernel, arch)
    traffic = traffic_of(kernel, arch, _row_bytes(kernel, case), case.rows)
    unrolled = isa.unrolling(kernel.compiled)
    running = running_programs(kernel, fits, limits.sms)
    moved = memory_bytes(kernel, traffic, running, limits.l2_bytes, case.rows)
    times = kernel_times(traffic, moved, running, unrolled, ceiling)
    return KernelAnalysis(
        kernel=kernel.name,
        programs=kernel.n_programs,
        passes=traffic.passes(ROWS),
        **code_fields(kernel, fits),
        **traffic_fields(traffic, moved, times, unrolled, "row", case.rows),
    )


def code_fields(kernel: CompiledKernel, fits: Occupancy) -> dict[str, Any]:
    """The fields of a ``CompiledCode``."""
    code = isa.default_isa(kernel.compiled)
    lines = isa.lines_of(kernel.compiled, code)
    return {
        "warps": kernel.num_warps,
        "registers": kernel.resources.registers,
        "registers_allocated": fits.registers,
        "spilled_bytes": kernel.resources.spills,
        "shared_bytes": fits.shared,
        "occupancy": fits.fraction,
        "programs_per_sm": fits.programs,
        "limited_by": fits.limited_by,
        "instructions": isa.counts(lines),
        "load_widths": isa.widths(lines, "load"),
        "store_widths": isa.widths(lines, "store"),
        "isa": code,
    }


def traffic_fields(
    traffic: Traffic, moved: MemoryBytes, times: Times, unrolled: float, unit: str, n: int
) -> dict[str, Any]:
    """The fields of a kernel's traffic and predicted time. unit, n: rows or programs, and how many there are."""
    loads: tuple[Kind, ...] = ("load", "copy", "poll")
    stores: tuple[Kind, ...] = ("store", "atomic")
    requests = traffic.total("requests", *loads, *stores)
    return {
        "tensors": _tensor_traffic(traffic),
        f"load_requests_per_{unit}": traffic.total("requests", *loads) / n,
        f"store_requests_per_{unit}": traffic.total("requests", *stores) / n,
        f"load_sectors_per_{unit}": traffic.total("sectors", *loads) / n,
        f"store_sectors_per_{unit}": traffic.total("sectors", *stores) / n,
        "sectors_per_request": traffic.total("sectors", *loads, *stores) / requests,
        "sector_bytes": traffic.sector_bytes,
        "sector_use": traffic.sector_use,
        "in_flight_bytes": traffic.in_flight * unrolled,
        "memory_read": moved.read,
        "memory_written": moved.written,
        "predicted_seconds": max(times),
        "bound": times.limited_by,
    }


def _row_bytes(kernel: CompiledKernel, case: Case) -> int:
    """Bytes from a row to the next in the tensors of rows; of the narrowest, if they differ."""
    sizes = [size for name, size in kernel.tensors.items() if name in ROWS]
    return min(sizes, default=case.cols * 4 * case.rows) // case.rows


def _tensor_traffic(traffic: Traffic) -> list[TensorTraffic]:
    """The flows of a kernel, as an analysis has them."""
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
