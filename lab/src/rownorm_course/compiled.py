"""Kernels of a learner, compiled for a GPU that is not here, as the lab's analysis sees them. In the learner's process.

The learner's function was called with memory that is never touched; its launches were recorded instead of started, with
their grid, block sizes and warps. Each is compiled for the target and its addresses are traced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.compiler import ASTSource

from rownorm.inside import TARGETS, Target
from rownorm_lab.compiled.analysis import analyze
from rownorm_lab.compiled.compile import Compilation, CompiledKernel, target_of
from rownorm_lab.compiled.launched import compile_launch, compile_loop
from rownorm_lab.compiled.recorded import Launched
from rownorm_lab.compiled.trace import Unresolved
from rownorm_lab.data.case import Case

from .grades import Failure
from .observe import Launch
from .protocol import TARGET, Compiled, CompiledCall

OPTIONS = ("num_warps", "num_stages", "maxnreg")  # of the compiler


def compiled_call(
    launches: Sequence[Launch],
    roles: Mapping[int, str],
    case: Case,
    analysis: bool,
) -> CompiledCall:
    """Compile what a call launched, and analyze it. roles: of tensors, by address."""
    target = TARGETS[TARGET]
    kernels = [_kernel(launch, roles, case, target) for launch in launches]
    told = CompiledCall(
        kernels=[
            Compiled(
                name=one.name,
                n_programs=one.n_programs,
                tensors=list(one.tensors),
                spills=one.resources.spills,
                ptx=one.compiled.asm["ptx"],
            )
            for one in kernels
        ]
    )
    if not analysis or not kernels:
        return told
    try:
        found = analyze(Compilation(case, target, None, kernels))
    except (Unresolved, ValueError, KeyError, ZeroDivisionError) as error:
        names = ", ".join(one.name for one in kernels)
        raise Failure(
            f"{case.title}: the addresses of {names} cannot be followed ({error}). Load the tensors that the function "
            "was given, at offsets made of program ids, tl.arange, sizes and strides, not through tensor descriptors"
        ) from error
    told.analyses = list(found.kernels)
    told.predicted_seconds, told.memory_bytes = found.predicted_seconds, found.memory_bytes
    return told


@triton.jit  # type: ignore[untyped-decorator]
def sum_kernel(x_ptr, sum_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of one block, for the picture of a reduction."""
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(sum_ptr, tl.sum(x, axis=0))


def reduction_code() -> dict[str, list[str]]:
    """The instructions that add the lanes of one warp, by target: PTX, and the ISA of an AMD GPU."""
    found = {}
    for name, code, pattern in (
        ("sm_90", "ptx", r"shfl|add\.f32"),
        ("gfx942", "amdgcn", r"^\s*(v_add_f32|v_mov_b32_dpp|ds_|v_readlane|v_permlane)"),
    ):
        target = TARGETS[name]
        signature = {"x_ptr": "*fp32", "sum_ptr": "*fp32", "BLOCK": "constexpr"}
        source = ASTSource(sum_kernel, signature, {(2,): target.device.warp_size})
        compiled = triton.compile(source, target=target.triton, options={"num_warps": 1})
        lines = [" ".join(line.split()) for line in compiled.asm[code].splitlines()]
        found[name] = [line for line in lines if re.search(pattern, line)]
    return found


def loop_figures(blocks: list[int]) -> list[list[float]]:
    """Load width, loads and sectors of a row, bytes in flight of the plain kernel of exercise 1, by block size."""
    case = Case(operation="rms_norm", rows=32768, cols=4096, dtype="fp16")
    found = []
    for block in blocks:
        one = analyze(compile_loop(case, block, target_of(TARGET)), block).kernels[0]
        figures = (one.load_requests_per_row, one.load_sectors_per_row, one.in_flight_bytes)
        found.append([max(one.load_widths), *figures])
    return found


def _kernel(launch: Launch, roles: Mapping[int, str], case: Case, target: Target) -> CompiledKernel:
    kernel = launch.kernel
    values: dict[str, Any] = {one.name: launch.arguments.get(one.name) for one in kernel.params}
    options = {key: launch.options[key] for key in OPTIONS if key in launch.options}
    try:
        found = compile_launch(Launched(kernel, values, options, launch.grid), target)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise Failure(
            f"{kernel.__name__} runs in the interpreter but does not compile for {target.device.arch}: "
            f"{type(error).__name__}: {reason[-1] if reason else ''}"
        ) from error
    arguments: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for name, number in found.arguments.items():
        if name in found.tensors:
            tensor = values[name]
            role = roles.get(tensor.data_ptr()) or _output_role(tensor, case, sizes, name)
            arguments[f"{role}_ptr"] = sizes[role] = found.tensors[name]
        else:
            arguments[name] = number or 0
    n_programs = found.n_programs
    share = max(1, n_programs // case.rows) if n_programs % case.rows == 0 else 1
    return found._replace(
        arguments=arguments,
        tensors=sizes,
        share=share if n_programs > 1 else 1,
        rows_each=max(1, case.rows // max(1, n_programs)),
    )


def _output_role(value: Tensor, case: Case, taken: Mapping[str, int], name: str) -> str:
    """The role of a tensor that the function made: the rows' output, else its own name."""
    role = "dx" if case.direction != "forward" else "y"
    if value.shape == (case.rows, case.cols) and role not in taken:
        return role
    return name.removesuffix("_ptr")
