"""Theoretical occupancy: how many programs an SM (AMD: a compute unit) holds at once, and what limits them.

Limits are those of the CUDA C++ Programming Guide (compute capabilities 8.0, 9.0, 10.0) and of AMD's ISA guides for
CDNA 2 and 3.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .compile import CompiledKernel

_KIB = 1 << 10


class Multiprocessor(NamedTuple):
    """What the programs on one SM or compute unit share."""

    warps: int  # AMD: waves
    programs: int
    registers: int  # of 32 bits, for each of ``parts``
    register_step: int  # registers of a thread are allocated in multiples of this
    parts: int  # schedulers (AMD: SIMDs); the registers of a warp are in one part
    warp_size: int
    shared: int  # bytes
    shared_step: int
    reserved: int  # bytes of shared memory that the driver takes for each program


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(64, 32, 16384, 8, 4, 32, 164 * _KIB, 128, _KIB),
    "sm_90": Multiprocessor(64, 32, 16384, 8, 4, 32, 228 * _KIB, 128, _KIB),
    "sm_100": Multiprocessor(64, 32, 16384, 8, 4, 32, 228 * _KIB, 128, _KIB),
    "gfx90a": Multiprocessor(32, 32, 32768, 8, 4, 64, 64 * _KIB, 512, 0),
    "gfx942": Multiprocessor(32, 32, 32768, 8, 4, 64, 64 * _KIB, 512, 0),
}
# Sizes that NVIDIA's shared memory can have; the rest of it is L1.
SHARED_SIZES = tuple(size * _KIB for size in (8, 16, 32, 64, 100, 132, 164, 196, 228))


class Occupancy(NamedTuple):
    """Programs and warps on one multiprocessor; ``limits`` are the programs that each resource allows."""

    programs: int
    warps: int
    fraction: float  # of the warps that fit at most
    limits: dict[str, int]
    registers: int  # of a thread, as they are allocated
    shared: int  # bytes of a program, without those that the driver reserves

    @property
    def limited_by(self) -> str:
        """The resources that allow no more programs. If all warps fit, no other resource lacks anything."""
        if self.fraction == 1:
            return "warps"
        return ", ".join(name for name, most in self.limits.items() if most == self.programs)


def occupancy_of(kernel: CompiledKernel, arch: str) -> Occupancy:
    """The occupancy of a compiled kernel on an architecture."""
    static = _static_shared(kernel.compiled.asm.get("ptx", ""))
    shared = kernel.resources.shared + static
    registers = kernel.resources.registers
    return occupancy(arch, registers, shared, kernel.num_warps, kernel.programs_per_sm)


def occupancy(
    arch: str, registers: int, shared: int, num_warps: int, reserved_for: int = 0
) -> Occupancy:
    """registers: of a thread; shared: bytes of a program. reserved_for: programs that shared memory is reserved for."""
    unit = MULTIPROCESSORS[arch]
    allocated = _up(max(registers, 1), unit.register_step)
    warps_of_part = unit.registers // (allocated * unit.warp_size)
    taken = _up(shared + unit.reserved, unit.shared_step)
    size = unit.shared
    if reserved_for and unit.reserved:
        wanted = min(size, reserved_for * (shared + unit.reserved))
        size = next(each for each in SHARED_SIZES if each >= wanted or each >= unit.shared)
    limits = {
        "warps": unit.warps // num_warps,
        "programs": unit.programs,
        "registers": warps_of_part * unit.parts // num_warps,
        "shared memory": min(size, unit.shared) // taken if taken else unit.programs,
    }
    programs = min(limits.values())
    warps = programs * num_warps
    return Occupancy(programs, warps, warps / unit.warps, limits, allocated, shared)


def _static_shared(ptx: str) -> int:
    """Bytes of shared memory that a kernel declares itself, beside what the launch gives it."""
    declared = re.findall(r"^\s*\.shared \.align \d+ \.b8 \w+\[(\d+)\]", ptx, re.MULTILINE)
    return sum(map(int, declared))


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
