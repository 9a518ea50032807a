"""A case and a target to compiled kernels and their launch: programs, arguments, tensors. Needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton

from rownorm.inside import (
    INPUTS,
    INTERPRETING,
    TARGETS,
    Binary,
    Inputs,
    Plan,
    Resources,
    Target,
    compile_backward,
    compile_forward,
    device_of,
    resources,
)

from ..data.case import ITEMSIZE, Case
from ..providers.data import input_names, program_of

# Tensors of (rows, columns).
ROWS = ("x", "residual", "gate", "y", "h", "dy", "dh", "dx", "dresidual", "dgate")


class CompiledKernel(NamedTuple):
    """One compiled kernel and its launch."""

    name: str
    n_programs: int
    num_warps: int
    warp_size: int
    # In order: tensors by the names of their parameters, with their bytes; integers; None: another number.
    arguments: Mapping[str, int | None]
    tensors: dict[str, int]  # bytes by role
    resources: Resources
    compiled: Any  # Triton's: ``asm`` and ``metadata``
    # Neighboring programs that work on the same rows: a cluster, a group, the parts of a row.
    share: int = 1
    turns_over: int = 0  # rows of all programs in one turn of their loop over rows; 0: no such loop
    rows_each: int = 1  # rows of a program without such a loop
    sections: int = 0  # column_sums: vectors whose columns the programs divide among themselves
    programs_per_sm: int = 0  # programs that shared memory is reserved for; 0: the driver decides
    cluster_size: int = 1
    pipeline_depth: int = 0


class Compilation(NamedTuple):
    """The kernels of a case on a target, in the order in which they run."""

    case: Case
    target: Target
    plan: Plan | None  # None: the plain looped kernel
    kernels: list[CompiledKernel]


def target_of(name: str) -> Target:
    """The target of that name; "this" is the GPU of this machine. ValueError if there is none."""
    if INTERPRETING:
        raise ValueError(
            "Triton interprets kernels here and cannot compile: unset TRITON_INTERPRET"
        )
    if name == "this":
        if not torch.cuda.is_available():
            raise ValueError(
                f"torch sees no GPU, so there is no target 'this'; name one of {', '.join(TARGETS)}"
            )
        device = device_of(0)
        if device.arch not in TARGETS:
            raise ValueError(
                f"the limits of {device.arch}, this GPU, are not known; name one of {', '.join(TARGETS)}"
            )
        return Target(device, triton.runtime.driver.active.get_current_target())
    return TARGETS[name]


def compile_case(case: Case, target: Target) -> Compilation:
    """Compile the kernels that rownorm would run. Forward is that of inference: it stores no statistics."""
    x = torch.empty(case.rows, case.cols, dtype=case.torch_dtype, device="meta")
    if case.sample_rows:
        x = x.unflatten(0, (-1, case.sample_rows))
    vector = x.flatten(0, -2)[0]
    like = {"rows": x, "columns": vector, "samples": x[:, :1] if case.sample_rows else None}
    present = input_names(case)
    of = {name: like[one.extent] if name in present else None for name, one in INPUTS.items()}
    of["residual"] = x.to(case.torch_residual_dtype) if case.adds else None
    program = program_of(case)
    tensors = Inputs(**of)  # type: ignore[arg-type]
    if case.direction == "forward":
        compiled = compile_forward(*tensors, program, target, want_statistics=False)
    else:
        compiled = compile_backward(*tensors, program, target)
    kernels = [_kernel(one, compiled.plan, case, target) for one in compiled.binaries]
    return Compilation(case, target, compiled.plan, kernels)


def _kernel(binary: Binary, plan: Plan, case: Case, target: Target) -> CompiledKernel:
    call, compiled, dtypes = binary
    name = call.kernel.__name__
    sizes = _sizes(case, plan, call.integers["n_parts"])
    arguments: dict[str, int | None] = {}
    tensors: dict[str, int] = {}
    for argument in call.kernel.arg_names:
        role = argument.removesuffix("_ptr")
        if argument in call.integers:
            arguments[argument] = call.integers[argument]
        elif argument.endswith("_ptr") and dtypes.get(role) is not None:
            arguments[argument] = tensors[role] = sizes[role]
    # Programs that share rows are neighbors; the others divide the rows among themselves.
    share = {
        "forward_moments": call.integers["n_parts"],
        "forward_apply": call.integers["n_parts"],
        "backward_sums": call.integers["n_parts"],
        "backward_grid": call.integers["n_parts"],
        "backward_apply": call.integers.get("n_col_blocks", 1),
    }.get(name, call.cluster_size)
    n_programs = call.grid * call.cluster_size
    loops = name in ("backward_resident", "backward_grid") or (
        name == "forward_cluster" and call.constants["PREFETCH_ROWS"]
    )
    sections = len(tensors) // 2 if name == "column_sums" else 0
    rows_each = call.integers["rows_per_program"] if name == "backward_apply" else plan.block_rows
    return CompiledKernel(
        name=name,
        n_programs=n_programs,
        num_warps=call.num_warps,
        warp_size=target.device.warp_size,
        share=share,
        turns_over=n_programs // share * plan.block_rows if loops else 0,
        rows_each=rows_each,
        sections=sections,
        arguments=arguments,
        tensors=tensors,
        programs_per_sm=call.programs_per_sm,
        cluster_size=call.cluster_size,
        pipeline_depth=max(plan.pipeline_depth, plan.num_stages),
        resources=resources(call, compiled),
        compiled=compiled,
    )


def _sizes(case: Case, plan: Plan | None, n_parts: int) -> dict[str, int]:
    """Bytes of every tensor, by role."""
    item = ITEMSIZE[case.dtype]
    stream = ITEMSIZE[case.residual_dtype or case.dtype]
    elements, statistics = case.rows * case.cols, 4 * case.rows
    n_partials = plan.n_programs if plan is not None else 0
    sizes = dict.fromkeys(("x", "gate", "y", "dy", "dx", "dgate"), elements * item)
    # Without a residual, h of backward is x.
    sizes |= dict.fromkeys(("residual", "dh", "dresidual"), elements * stream)
    sizes["h"] = elements * (stream if case.adds else item)
    sizes |= dict.fromkeys(("mu", "rstd"), statistics)
    sizes |= dict.fromkeys(("parts", "stored_h_parts"), 2 * statistics * n_parts)
    sizes["messages"] = 2 * statistics * n_parts
    for name, one in INPUTS.items():
        if one.extent == "columns":
            sizes |= dict.fromkeys((name, f"d{name}"), case.cols * item)
            sizes[f"d{name}_partial"] = n_partials * case.cols * 4
        elif one.extent == "samples" and case.sample_rows:
            n_samples = case.rows // case.sample_rows
            sizes |= dict.fromkeys((name, f"d{name}"), n_samples * case.cols * item)
            spans = n_samples * (plan.spans_per_sample if plan is not None else 0)
            sizes[f"d{name}_partial"] = spans * case.cols * 4
    return sizes
