"""Textbook kernels, forward only: a row in one block, or a loop over a row in blocks of fixed size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data.case import Case
from . import Call, Refusal, provider
from .data import Tensors

LARGEST_BLOCK = 65536  # of plain_block
LOOP_BLOCK = 1024
# What both declare.
PLAIN: dict[str, Any] = {
    "kind": "plain",
    "operations": ("layer_norm", "rms_norm"),
    "directions": ("forward",),
    "options": ("bias", "no_bias"),
    "needs": ("triton",),
    "install": "pip install triton",
    "needs_gpu": True,
    "interpreted": True,
}


@provider(
    "plain_block",
    about="a plain Triton kernel: one power-of-two block per row, forward only",
    **PLAIN,
)
def plain_block(case: Case, t: Tensors) -> Call:
    """One pass over rows of limited width."""
    from .kernels import block

    width = 1 << (case.cols - 1).bit_length()
    if width > LARGEST_BLOCK:
        raise Refusal(
            f"plain_block keeps a row in one block of up to {LARGEST_BLOCK} columns; "
            f"{case.cols} columns need {width}"
        )
    return _call(block, case, t, width, num_warps=min(16, max(4, width // 512)))


@provider(
    "plain_loop",
    about="a plain Triton kernel: a loop over blocks of 1024 columns, forward only",
    **PLAIN,
)
def plain_loop(case: Case, t: Tensors) -> Call:
    """Any width, two or three passes over the row."""
    from .kernels import loop

    return _call(loop, case, t, LOOP_BLOCK, num_warps=4)


def _call(kernels: Any, case: Case, t: Tensors, width: int, num_warps: int) -> Call:
    kernel = kernels.layer_norm_kernel if case.centers else kernels.rms_norm_kernel

    def call() -> Tensor:
        y = torch.empty_like(t.x)
        kernel[(case.rows,)](
            *(t.x, t.weight, t.bias, y, t.x.stride(0), case.cols, case.eps),
            BLOCK=width,
            num_warps=num_warps,
        )
        return y

    return call
