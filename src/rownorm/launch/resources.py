"""What the compiler made of a kernel: registers, spills, shared memory, width of memory access. Needs no GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from triton import knobs
from triton.backends.compiler import GPUTarget

from .launcher import Call
from .problem import Device


class Target(NamedTuple):
    """An architecture to compile for, and a device that has it."""

    device: Device
    triton: GPUTarget


TARGETS = {
    target.device.arch: target
    for target in (
        Target(Device("NVIDIA A100", "sm_80", 108, 32), GPUTarget("cuda", 80, 32)),
        Target(Device("NVIDIA H100/H200", "sm_90", 132, 32), GPUTarget("cuda", 90, 32)),
        Target(Device("NVIDIA B200", "sm_100", 148, 32), GPUTarget("cuda", 100, 32)),
        Target(Device("AMD MI250X", "gfx90a", 110, 64), GPUTarget("hip", "gfx90a", 64)),
        Target(Device("AMD MI300X", "gfx942", 304, 64), GPUTarget("hip", "gfx942", 64)),
    )
}


class Resources(NamedTuple):
    """What one compiled kernel takes."""

    kernel: str
    num_warps: int
    registers: int  # per thread
    spills: int  # bytes per thread on NVIDIA, registers on AMD; 0 is good
    shared: int  # bytes per program
    load_bytes: int  # widest access of one thread, in bytes; 16 is the widest there is
    store_bytes: int


def resources(call: Call, compiled: Any) -> Resources:
    """Read the resources of ``launcher.compile_for(call, ...)``."""
    if compiled.metadata.target.backend == "hip":
        assembly = compiled.asm["amdgcn"]
        registers = int(_find(r"\.vgpr_count:\s*(\d+)", assembly))
        spills = int(_find(r"\.vgpr_spill_count:\s*(\d+)", assembly))
        load = _widest(r"(?:global|buffer)_load_(dwordx[234]|dword|u?short|ushort|ubyte)\b", assembly)
        store = _widest(r"(?:global|buffer)_store_(dwordx[234]|dword|short|byte)\b", assembly)
    else:
        registers, spills = _cubin_usage(compiled.asm["cubin"])
        load = _widest(r"ld\.global(?:\.[\w:]+)*?((?:\.v[248])?\.b\d+)", compiled.asm["ptx"])
        store = _widest(r"st\.global(?:\.[\w:]+)*?((?:\.v[248])?\.b\d+)", compiled.asm["ptx"])
    return Resources(
        kernel=call.kernel.__name__,
        num_warps=call.num_warps,
        registers=registers,
        spills=spills,
        shared=compiled.metadata.shared,
        load_bytes=load,
        store_bytes=store,
    )


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"no {pattern!r} in the compiler's output")
    return match[1]


def _widest(pattern: str, text: str) -> int:
    return max((_bytes(width) for width in re.findall(pattern, text)), default=0)


def _bytes(width: str) -> int:
    """ ".v4.b32" -> 16, "dwordx4" -> 16, "ushort" -> 2. """
    if match := re.fullmatch(r"(?:\.v(\d))?\.b(\d+)", width):
        return int(match[1] or 1) * int(match[2]) // 8
    if match := re.fullmatch(r"dwordx(\d)", width):
        return 4 * int(match[1])
    return {"dword": 4, "ubyte": 1, "byte": 1}.get(width, 2)


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) per thread: a kernel without calls has a stack only if it spills."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        usage = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return int(_find(r"REG:(\d+)", usage)), int(_find(r"STACK:(\d+)", usage))
