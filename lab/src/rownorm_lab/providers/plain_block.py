"""A textbook kernel: one block per row, as wide as the next power of two. One pass over rows of limited width."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.case import Case
from . import Call, Refusal, provider
from .data import Tensors
from .kernels import PLAIN

LARGEST_BLOCK = 65536


@provider(
    "plain_block",
    about="a plain Triton kernel: one power-of-two block per row, forward only",
    **PLAIN,  # type: ignore[arg-type]
)
def plain_block(case: Case, t: Tensors) -> Call:
    from .kernels import block

    width = 1 << (case.cols - 1).bit_length()
    if width > LARGEST_BLOCK:
        raise Refusal(
            f"plain_block keeps a row in one block of up to {LARGEST_BLOCK} columns; "
            f"{case.cols} columns need {width}"
        )
    kernel = block.layer_norm_kernel if case.centers else block.rms_norm_kernel
    warps = min(16, max(4, width // 512))

    def call() -> Tensor:
        y = torch.empty_like(t.x)
        kernel[(case.rows,)](
            t.x,
            t.weight,
            t.bias,
            y,
            t.x.stride(0),
            case.cols,
            case.eps,
            BLOCK=width,
            num_warps=warps,
        )
        return y

    return call
