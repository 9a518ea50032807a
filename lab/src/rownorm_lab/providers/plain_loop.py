"""A textbook kernel: a loop over a row in blocks of fixed size. Any width, two or three passes over the row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.case import Case
from . import Call, provider
from .data import Tensors
from .kernels import PLAIN

BLOCK = 1024


@provider(
    "plain_loop",
    about="a plain Triton kernel: a loop over blocks of 1024 columns, forward only",
    **PLAIN,  # type: ignore[arg-type]
)
def plain_loop(case: Case, t: Tensors) -> Call:
    from .kernels import loop

    kernel = loop.layer_norm_kernel if case.centers else loop.rms_norm_kernel

    def call() -> Tensor:
        y = torch.empty_like(t.x)
        kernel[(case.rows,)](
            t.x, t.weight, t.bias, y, t.x.stride(0), case.cols, case.eps, BLOCK=BLOCK, num_warps=4
        )
        return y

    return call
