"""RMSNorm for the Definition rmsnorm_d4096."""

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x_ptr, weight_ptr, out_ptr, eps, hidden, BLOCK: tl.constexpr):
    """One program computes one row."""
    # TODO
    pass


def run(x, weight, eps, out):
    """x, out: (batch, 4096), fp16; weight: (4096,); eps: a float. Writes out."""
    raise NotImplementedError("run")
