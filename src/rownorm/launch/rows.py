"""Tensors as rows: a pointer, a row stride and their alignment; and the dtypes that kernels use for them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
import triton.language as tl
from torch import Tensor

from ..program import Program
from ..reference import rounding_changes_statistics
from .planning.settings import Plan
from .problem import Problem

TRITON_DTYPE = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}

# The functions that inductor's generated code allocates with: without the dispatcher, on the current device, and never
# filled.
EMPTY_STRIDED = {
    kind: getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None)
    for kind in ("cpu", "cuda")
}


def row_stride(t: Tensor) -> int | None:
    """Elements from one row to the next, or None where the rows have no constant stride."""
    n_cols = t.shape[-1]
    if t.is_contiguous():
        return n_cols
    if n_cols > 1 and t.stride(-1) != 1:
        return None
    # Dimensions of size 1 do not matter. The others must be collapsible into one; the innermost has its stride.
    dims = [
        (size, step) for size, step in zip(t.shape[:-1], t.stride()[:-1], strict=True) if size > 1
    ]
    for (_, outer), (size, inner) in itertools.pairwise(dims):
        if outer != inner * size:
            return None
    return dims[-1][1] if dims else n_cols


def with_row_stride(t: Tensor | None) -> Tensor | None:
    """``t``, or a contiguous copy where its rows have no constant stride."""
    return t if t is None or row_stride(t) is not None else t.contiguous()


def contiguous(parameter: Tensor | None) -> Tensor | None:
    """``parameter``, or a copy with unit stride."""
    return parameter if parameter is None else parameter.contiguous()


def alignment(*sizes: int) -> int:
    """The largest power of two, at most 16, that divides every size."""
    bits = 16
    for size in sizes:
        bits |= size
    return bits & -bits


def required_row_stride(t: Tensor) -> int:
    """The row stride of ``t``; raises where it has none."""
    stride = row_stride(t)
    if stride is None:
        raise ValueError(
            f"rows of shape {tuple(t.shape)}, strides {t.stride()} have no constant stride"
        )
    return stride


def compute_type(problem: Problem) -> tl.dtype:
    """The dtype that a kernel computes in."""
    return tl.float64 if problem.computes_in_fp64 else tl.float32


def rounding_type(program: Program, problem: Problem) -> tl.dtype | None:
    """The dtype that ``x_hat`` is rounded to before the weight is applied; None where it is not rounded."""
    dtype = TRITON_DTYPE[problem.dtype]
    return dtype if program.rounding == "llama" and dtype != compute_type(problem) else None


def stored_h_type(program: Program, problem: Problem) -> tl.dtype | None:
    """The dtype in which ``h`` is stored, where its rounding can change the statistics; else None."""
    dtype = problem.residual_dtype
    compute = torch.float64 if problem.computes_in_fp64 else torch.float32
    if dtype is None or not rounding_changes_statistics(dtype, compute, program):
        return None
    return TRITON_DTYPE[dtype]


def packs(dtype: torch.dtype | None, problem: Problem, plan: Plan) -> bool:
    """Whether a program of a cluster stores two numbers of this dtype in one 32-bit word."""
    pairs = plan.block_cols >= 2 * plan.num_warps * problem.device.warp_size
    is_16_bit = dtype is not None and dtype.itemsize == 2
    return is_16_bit and pairs and problem.device.arch.startswith("sm_")


def allocator(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], Tensor]:
    """A function that allocates such a tensor, contiguous, in half the time of ``torch.empty`` or less.

    The memory is filled where torch's deterministic mode asks for it at the time of this call.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    filled = deterministic and torch._C._get_deterministic_fill_uninitialized_memory()
    empty_strided = EMPTY_STRIDED.get(device.type)
    if empty_strided is not None and not filled:
        strides = torch.empty(shape, device="meta").stride()
        return functools.partial(empty_strided, tuple(shape), strides, dtype)
    one = torch.empty((), dtype=dtype, device=device).expand(shape)
    return functools.partial(torch.empty_like, one, memory_format=torch.contiguous_format)
