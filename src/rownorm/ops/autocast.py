"""What ``torch.autocast`` changes about a call: the same as for torch's own norms, without a cast of its own.

Under autocast for CUDA, torch casts 16-bit rows to fp32 before a norm, so that the result is fp32. The kernels read
16-bit rows as they are and store fp32: the same numbers. Which norms torch casts depends on its version: layer_norm in
every one, rms_norm from 2.12 on. A call with an ``out_dtype`` of its own keeps it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..program import INPUTS, Program, has_numbers
from .checks import check_options

HALVES = (torch.float16, torch.bfloat16)
_OUT_DTYPE = Program._fields.index("out_dtype")
# By ``Program.center``: whether torch casts the rows of this norm.
IS_CAST = {
    center: torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{norm}", "AutocastCUDA")
    for center, norm in ((True, "layer_norm"), (False, "rms_norm"))
}


def autocast_options(x: Tensor, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options of a call on x, as autocast changes them. options: a Program, or its fields in a plain tuple."""
    if options[_OUT_DTYPE] is None and x.is_cuda and torch.is_autocast_enabled("cuda"):
        if not has_numbers(options):  # ``checks`` will refuse it; the cache must not keep a tensor
            return options
        return autocast_program(x.dtype, options)
    return options


@functools.lru_cache
def autocast_program(x_dtype: torch.dtype, options: tuple[Any, ...]) -> Program:
    """The program for rows of this dtype where autocast is enabled. Rows that are cast to fp32 are rounded once.

    options: a Program, or its fields in a plain tuple. They are equal and share an entry of the cache, so the result is
    a Program for both.
    """
    program = Program(*options)
    # What raises is not kept by the cache: an option could be a tensor. ``checks.check`` looks at the tensors.
    check_options(f"rownorm.{program.name}", program, INPUTS)
    if program.out_dtype is not None or x_dtype not in HALVES or not IS_CAST[program.center]:
        return program
    return program._replace(out_dtype=torch.float32, rounding="once")
