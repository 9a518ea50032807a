"""Candidates that need no measurement: what their compiled code says about spills and occupancy. Needs no GPU.

A candidate is left out if one of its kernels

    spills              keeps more than MOST_SPILLS bytes of a thread in memory that should be in registers
    does not fit        takes more registers or shared memory than a multiprocessor has
    crowds              is to run with more programs on a multiprocessor than fit: the last ones would start late
    waits               forward: the rows that all programs on a multiprocessor load at once are less than half of
                        what hides the latency of memory at the peak bandwidth

These are the occupancy and the latency of ``rownorm analyze``.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

from rownorm.inside import Target

from ...compiled.compile import Compilation, CompiledKernel, compile_case
from ...compiled.occupancy import Occupancy, occupancy_of
from ...compiled.roofline import LATENCY, limits_of
from .candidates import Settings, forced
from .study import TuningCase

Cause = Literal["", "spills", "does not fit", "crowds", "waits", "does not compile"]
MOST_SPILLS = 16  # with so few, fp32 LayerNorm of 12288 columns with a pre_bias is still fastest
HIDDEN = 0.5  # of the latency that rows in flight must hide


class CompiledCandidate(NamedTuple):
    """What the compiled code of a candidate says. cause: why it is not measured; empty if it is."""

    registers: int  # of a thread, in its main kernel
    spills: int  # bytes of a thread, in all kernels
    programs: int  # that fit on a multiprocessor
    occupancy: float
    cause: Cause = ""
    why: str = ""


def compiled(study: TuningCase, settings: Settings, target: Target) -> CompiledCandidate:
    """Compile a candidate for a target and look at its kernels."""
    try:
        with forced(settings):
            compilation = compile_case(study.case(study.n_rows), target)
    except Exception as error:  # of the compiler, whatever its type
        return CompiledCandidate(
            0, 0, 0, 0.0, "does not compile", f"{type(error).__name__}: {error}"[:200]
        )
    main = max(compilation.kernels, key=lambda kernel: kernel.resources.registers)
    fits = occupancy_of(main, target.device.arch)
    spills = sum(kernel.resources.spills for kernel in compilation.kernels)
    found = CompiledCandidate(main.resources.registers, spills, fits.programs, fits.fraction)
    cause, why = _judged(compilation, main, fits, spills)
    return found._replace(cause=cause, why=why)


def _judged(
    compilation: Compilation, main: CompiledKernel, fits: Occupancy, spills: int
) -> tuple[Cause, str]:
    if spills > MOST_SPILLS:
        return "spills", f"spills {spills} bytes per thread"
    if not fits.programs:
        return "does not fit", f"a program does not fit on a multiprocessor: {fits.limited_by}"
    plan = compilation.plan
    assert plan is not None
    shares_rows = plan.n_programs > 0  # a fixed number of programs goes through all rows
    if shares_rows and main.cluster_size == 1 and plan.programs_per_sm > fits.programs:
        why = f"{plan.programs_per_sm} programs per multiprocessor, of which {fits.programs} fit"
        return "crowds", why
    needed = _needed_in_flight(compilation.target)
    in_flight = fits.programs * _loaded_at_once(compilation)
    if needed and in_flight and in_flight < HIDDEN * needed:
        return "waits", f"{in_flight:,} bytes in flight per multiprocessor, {needed:,.0f} needed"
    return "", ""


def _loaded_at_once(compilation: Compilation) -> int:
    """Forward tile, resident and looped: bytes of rows that a program loads before it waits; else 0."""
    plan, case = compilation.plan, compilation.case
    assert plan is not None
    if case.direction == "backward" or plan.regime not in ("tile", "resident", "looped"):
        return 0
    element = case.torch_dtype.itemsize
    element += case.torch_residual_dtype.itemsize if case.adds else 0
    cols = min(case.cols, max(1, plan.chunks) * plan.block_cols)
    return plan.block_rows * cols * element


@functools.cache
def _needed_in_flight(target: Target) -> float:
    """Bytes that must be in flight on a multiprocessor for the peak bandwidth; 0 if the peak is unknown."""
    limits = limits_of(target)
    return (limits.peak or 0.0) * LATENCY / limits.sms
