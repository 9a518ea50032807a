"""Resources of compiled kernels: registers, spills, shared memory, width of memory accesses. Needs no GPU.

``compile_forward`` and ``compile_backward`` take tensors on any device, ``meta`` included: only their shapes, strides
and dtypes matter. Triton must compile, not interpret (``TRITON_INTERPRET`` unset).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget

from ..program import Inputs
from . import backward, forward
from .device import DEVICES, Device
from .launcher import Call, Steps, compile_for
from .planning import Plan, plan
from .problem import backward_problem, forward_problem, without_values


class Target(NamedTuple):
    """An architecture to compile for, and a device of that architecture."""

    device: Device
    triton: GPUTarget


def _triton_target(device: Device) -> GPUTarget:
    if device.is_nvidia:
        return GPUTarget("cuda", int(device.arch.removeprefix("sm_")), device.warp_size)
    return GPUTarget("hip", device.arch, device.warp_size)


TARGETS = {arch: Target(device, _triton_target(device)) for arch, device in DEVICES.items()}


class Resources(NamedTuple):
    """Resources of one compiled kernel."""

    kernel: str
    num_warps: int
    registers: int  # per thread
    spills: int  # bytes per thread; should be 0
    shared: int  # bytes per program
    load_bytes: int  # widest load of one thread, in bytes; should be 16
    wide_loads: int  # instructions that move 16 bytes or more per thread
    wide_stores: int


class Binary(NamedTuple):
    """A kernel call and what Triton compiled for it; dtypes: of its tensors, by role."""

    call: Call
    compiled: Any
    dtypes: Mapping[str, torch.dtype | None]


class Compiled(NamedTuple):
    """The plan of a norm for a target, and its kernels in the order in which they run."""

    plan: Plan
    binaries: list[Binary]

    @property
    def kernels(self) -> list[Resources]:
        """The resources of each kernel."""
        return [resources(one.call, one.compiled) for one in self.binaries]


def compile_forward(*arguments: Any, want_statistics: bool = True) -> Compiled:
    """Plan and compile the forward pass. That of a training step stores mu and rstd for backward.

    arguments: the tensors of ``Inputs``, a ``Program``, a ``Target``.
    """
    *tensors, program, target = arguments
    inputs = Inputs(*tensors)
    problem = forward_problem(inputs, program, target.device)
    chosen = plan(problem)
    steps = forward.steps(problem, chosen, inputs, program, want_statistics)
    return _compiled(chosen, steps, target)


def compile_backward(*arguments: Any) -> Compiled:
    """Plan and compile the backward pass that computes a gradient for every given tensor.

    arguments: as for ``compile_forward``.
    """
    *tensors, program, target = arguments
    inputs = Inputs(*tensors)
    x, residual = inputs.x, inputs.residual
    # If x and the residual have the same dtype, and nothing is between them, one tensor is the gradient of both.
    own_gradient = residual is not None and (
        residual.dtype != x.dtype or inputs.residual_gate is not None
    )
    wanted = inputs._replace(residual=residual if own_gradient else None)
    of = (program.for_backward(x.dtype), residual is not None, tuple(t is not None for t in wanted))
    saved = without_values(inputs, program)
    problem = backward_problem(saved, *of, target.device)
    chosen = plan(problem)
    return _compiled(chosen, backward.steps(problem, chosen, saved, *of), target)


def _compiled(plan: Plan, steps: Steps, target: Target) -> Compiled:
    dtypes = {role: None if t is None else t.dtype for role, t in steps.tensors.items()}
    dtypes |= {role: dtype for role, (_, dtype) in steps.allocated.items()}
    dtypes |= {role: dtypes[other] for role, other in steps.stand_ins.items()}
    return Compiled(plan, [_compile(call, dtypes, target) for call in steps.calls])


def _compile(call: Call, dtypes: Mapping[str, torch.dtype | None], target: Target) -> Binary:
    return Binary(call, compile_for(call, dtypes, target.triton), dtypes)


def resources(call: Call, compiled: Any) -> Resources:
    """The resources of a kernel that ``launcher.compile_for(call, ...)`` compiled."""
    if compiled.metadata.target.backend == "hip":
        assembly = compiled.asm["amdgcn"]
        registers = int(_find(r"\.vgpr_count:\s*(\d+)", assembly))
        spills = int(_find(r"\.private_segment_fixed_size:\s*(\d+)", assembly))
        loads = _widths(
            r"(?:global|buffer)_load_(dwordx[234]|dword|[us]?short|[us]?byte)", assembly
        )
        stores = _widths(r"(?:global|buffer)_store_(dwordx[234]|dword|short|byte)", assembly)
    else:
        registers, spills = _cubin_usage(compiled.asm["cubin"])
        ptx = compiled.asm["ptx"]
        loads = _widths(r"ld\.global(?:\.[\w:]+)*?((?:\.v[248])?\.b\d+)", ptx)
        loads += [int(width, 0) for width in re.findall(r"cp\.async\.c[ag].*?\], (0x\d+|\d+)", ptx)]
        stores = _widths(r"st\.global(?:\.[\w:]+)*?((?:\.v[248])?\.b\d+)", ptx)
    return Resources(
        kernel=call.kernel.__name__,
        num_warps=call.num_warps,
        registers=registers,
        spills=spills,
        shared=compiled.metadata.shared,
        load_bytes=max(loads, default=0),
        wide_loads=sum(width >= 16 for width in loads),
        wide_stores=sum(width >= 16 for width in stores),
    )


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"no {pattern!r} in the compiler's output")
    return match[1]


def _widths(pattern: str, text: str) -> list[int]:
    """Bytes that one thread moves with each instruction that matches the pattern."""
    return [_bytes(width) for width in re.findall(pattern, text)]


def _bytes(width: str) -> int:
    """Bytes of one access: ".v4.b32" is 16, "dwordx4" is 16, "ushort" is 2."""
    if match := re.fullmatch(r"(?:\.v(\d))?\.b(\d+)", width):
        return int(match[1] or 1) * int(match[2]) // 8
    if match := re.fullmatch(r"dwordx(\d)", width):
        return 4 * int(match[1])
    return {"dword": 4, "byte": 1, "ubyte": 1, "sbyte": 1}.get(width, 2)


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) per thread. A kernel without calls has a stack only if it spills."""
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
