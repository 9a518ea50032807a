"""A learner's kernel, compiled for a GPU that is not here, as the lab's analysis sees it.

The learner's function is called with memory that is never touched; its launches are recorded instead of started, with
their grid, block sizes and warps. Each is compiled for the target and its addresses are traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.compiler import ASTSource

from rownorm.inside import POINTER_TYPE, TARGETS, Call, Target, resources
from rownorm_lab.compiled.analysis import analyze
from rownorm_lab.compiled.compile import Compilation, CompiledKernel
from rownorm_lab.compiled.trace import Unresolved
from rownorm_lab.data.analyses import KernelAnalysis
from rownorm_lab.data.case import Case
from rownorm_lab.providers.data import Tensors

from .grades import Failure
from .observe import Launch, Seen, observed

TARGET = "sm_90"


class CompiledCall(NamedTuple):
    """The kernels of one call, with what the lab's analysis says about them."""

    kernels: list[CompiledKernel]
    analyses: list[KernelAnalysis]
    predicted_seconds: float
    memory_bytes: float  # to and from memory, of all kernels


def compile_call(
    call: Callable[[Case, Tensors], Any], case: Case, target: str = TARGET
) -> CompiledCall:
    """Record, compile and analyze what ``call`` launches for a case."""
    chosen = TARGETS[target]
    kernels, _ = compile_kernels(call, case, target)
    try:
        analysis = analyze(Compilation(case, chosen, None, kernels))
    except (Unresolved, ValueError, KeyError, ZeroDivisionError) as error:
        names = ", ".join(one.name for one in kernels)
        raise Failure(
            f"{case.title}: the addresses of {names} cannot be followed ({error}). Load the tensors that the function "
            "was given, at offsets made of program ids, tl.arange, sizes and strides"
        ) from error
    return CompiledCall(
        kernels, analysis.kernels, analysis.predicted_seconds, analysis.memory_bytes
    )


def compile_kernels(
    call: Callable[[Case, Tensors], Any], case: Case, target: str = TARGET
) -> tuple[list[CompiledKernel], Seen]:
    """The same without the analysis; and what was seen during the call."""
    tensors = untouched(case)
    with observed(launch=False) as seen:
        call(case, tensors)
    if not seen.launches:
        raise Failure(f"{case.title}: the function returned without a kernel", "no-kernel")
    roles = {_place(one): name for name, one in tensors._asdict().items() if one is not None}
    return [_kernel(launch, roles, case, TARGETS[target]) for launch in seen.launches], seen


def untouched(case: Case, device: str = "cpu") -> Tensors:
    """The tensors of a case. Memory that nothing touches takes no room; on the meta device there is none."""
    rows = torch.empty(case.rows, case.cols, dtype=case.torch_dtype, device=device)
    vector = torch.empty(case.cols, dtype=case.torch_dtype, device=device)
    backward = case.direction != "forward"
    return Tensors(
        x=rows,
        residual=torch.empty_like(rows) if case.adds else None,
        pre_bias=vector.clone() if case.pre_bias else None,
        weight=vector,
        bias=vector.clone() if case.has_bias else None,
        dy=torch.empty_like(rows) if backward else None,
        dh=None,
    )


def _place(tensor: Tensor) -> int:
    return tensor.data_ptr()


def _kernel(launch: Launch, roles: Mapping[int, str], case: Case, target: Target) -> CompiledKernel:
    kernel = launch.kernel
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    arguments: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for position, parameter in enumerate(kernel.params):
        name = parameter.name
        value = launch.arguments.get(name)
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[name] = "constexpr"  # Triton specializes None and 1, too
            constants[position,] = value
        elif isinstance(value, Tensor):
            role = roles.get(_place(value)) or _output_role(value, case, sizes, name)
            signature[name] = POINTER_TYPE.get(value.dtype, f"*{_INTEGERS.get(value.dtype, 'i32')}")
            arguments[f"{role}_ptr"] = sizes[role] = value.numel() * value.element_size()
            if value.data_ptr() % 16 == 0:
                attributes[position,] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
            arguments[name] = 0
        else:
            signature[name] = "i1" if isinstance(value, bool) else _integer(value)
            arguments[name] = int(value)
            if value % 16 == 0:
                attributes[position,] = [["tt.divisibility", 16]]
    warps = int(launch.options.get("num_warps", 4))
    options = {"num_warps": warps}
    options |= {
        key: launch.options[key] for key in ("num_stages", "maxnreg") if key in launch.options
    }
    try:
        source = ASTSource(kernel, signature, constants, attributes)
        compiled = triton.compile(source, target=target.triton, options=options)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise Failure(
            f"{kernel.__name__} runs in the interpreter but does not compile for {target.device.arch}: "
            f"{type(error).__name__}: {reason[-1] if reason else ''}"
        ) from error
    n_programs = math.prod(launch.grid)
    share = max(1, n_programs // case.rows) if n_programs % case.rows == 0 else 1
    call = Call(kernel, n_programs, warps, {}, {})
    return CompiledKernel(
        name=kernel.__name__,
        n_programs=n_programs,
        num_warps=warps,
        warp_size=target.device.warp_size,
        share=share if n_programs > 1 else 1,
        turns_over=0,
        rows_each=max(1, case.rows // max(1, n_programs)),
        sections=0,
        arguments=arguments,
        tensors=sizes,
        programs_per_sm=0,
        cluster_size=1,
        pipeline_depth=0,
        resources=resources(call, compiled),
        compiled=compiled,
    )


_INTEGERS = {torch.int32: "i32", torch.int64: "i64", torch.int8: "i8", torch.bool: "i1"}


def _integer(value: int) -> str:
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _output_role(value: Tensor, case: Case, taken: Mapping[str, int], name: str) -> str:
    """The role of a tensor that the function made: the rows' output, else its own name."""
    role = "dx" if case.direction != "forward" else "y"
    if value.shape == (case.rows, case.cols) and role not in taken:
        return role
    return name.removesuffix("_ptr")
