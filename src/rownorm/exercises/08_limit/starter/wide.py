"""RMSNorm for few wide rows and for many short ones."""

import torch
import triton
import triton.language as tl

# TODO: kernels


def rms_norm(x, weight, eps=1e-6):
    """x: (rows, cols), contiguous; weight: (cols,). Returns y, shaped and typed like x."""
    raise NotImplementedError("rms_norm: choose the kernels by the shape")
