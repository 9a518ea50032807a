"""Compile a launch for a target, as Triton would for such arguments: of a user's kernel, or of the plain loop."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from triton.compiler import ASTSource

from rownorm.inside import Call, Target, resources

from ..data.case import Case
from ..providers.kernels import loop
from .compile import Compilation, CompiledKernel
from .recorded import NAMES, Launched

ALIGNMENT = 16  # bytes, and the divisor of integers: what Triton specializes kernels for
LOOP_WARPS = 4  # of the plain loop


def compile_loop(case: Case, block: int, target: Target) -> Compilation:
    """Compile the plain kernel that loops over a row in blocks of that many columns; forward only."""
    kernel = loop.layer_norm_kernel if case.centers else loop.rms_norm_kernel
    x = torch.empty(case.rows, case.cols, dtype=case.torch_dtype, device="meta")
    vector = torch.empty_like(x[0])
    bias = vector if case.has_bias else None
    arguments = (x, vector, bias, x, case.cols, case.cols, case.eps, block)
    values = dict(zip(kernel.arg_names, arguments, strict=True))
    launched = Launched(kernel, values, {"num_warps": LOOP_WARPS}, (case.rows,))
    one = compile_launch(launched, target)
    by_role = {name.removesuffix("_ptr"): size for name, size in one.tensors.items()}
    return Compilation(case, target, None, [one._replace(tensors=by_role)])


def compile_launch(launched: Launched, target: Target) -> CompiledKernel:
    """The kernel for the types, alignments and constants of a launch. ValueError if an argument is of no known type."""
    kernel = launched.kernel
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for position, parameter in enumerate(kernel.params):
        value = launched.values[parameter.name]
        kind, divisible = _type(parameter, value)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[position,] = value
        elif divisible and not parameter.do_not_specialize_on_alignment:
            attributes[position,] = [["tt.divisibility", ALIGNMENT]]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": launched.num_warps} | launched.options
    compiled = triton.compile(source, target=target.triton, options=options)
    x, y, z = launched.size()
    call = Call(kernel, x * y * z, compiled.metadata.num_warps, {}, {})
    passed = {
        name: launched.values[name] for name, kind in signature.items() if kind != "constexpr"
    }
    tensors = {name: tensor_bytes(value) for name, value in launched.tensors.items()}
    numbers = {
        name: int(value) if isinstance(value, int) else None for name, value in passed.items()
    }
    return CompiledKernel(
        name=kernel.__name__,
        n_programs=x * y * z,
        num_warps=compiled.metadata.num_warps,
        warp_size=target.device.warp_size,
        arguments={**numbers, **tensors},
        tensors=tensors,
        cluster_size=getattr(compiled.metadata, "num_ctas", 1),
        resources=resources(call, compiled),
        compiled=compiled,
    )


def _type(parameter: Any, value: Any) -> tuple[str, bool]:
    """(Triton's type of an argument, whether it is divisible by 16 or aligned)."""
    if value is None or parameter.is_constexpr:
        return "constexpr", False
    if isinstance(value, torch.Tensor):
        if value.dtype not in NAMES:
            raise ValueError(f"{parameter.name} is of {value.dtype}, which cannot be analyzed")
        return f"*{NAMES[value.dtype]}", _address(value) % ALIGNMENT == 0
    annotated = str(getattr(parameter, "annotation_type", "") or "")
    if isinstance(value, bool):
        return annotated or "u1", False
    if isinstance(value, int):
        if value == 1 and not parameter.do_not_specialize:
            return "constexpr", False
        fits = "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
        return annotated or fits, value % ALIGNMENT == 0 and not parameter.do_not_specialize
    if isinstance(value, float):
        return annotated or "fp32", False
    raise ValueError(
        f"{parameter.name} is a {type(value).__name__}; only tensors, numbers and constants can be analyzed"
    )


def _address(tensor: torch.Tensor) -> int:
    """The address of a tensor with memory; of one without, its offset in a storage that is aligned."""
    if tensor.is_meta:
        return int(tensor.storage_offset()) * tensor.element_size()
    return tensor.data_ptr()


def tensor_bytes(tensor: torch.Tensor) -> int:
    """The bytes of the different elements of a tensor: an expanded dimension counts once."""
    different = (
        size if stride else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return math.prod(different) * tensor.element_size()
