"""RMSNorm for few wide rows and for many short ones."""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl

# TODO: kernels


def rms_norm(x, weight, eps=1e-6):
    """x: (rows, cols), contiguous; weight: (cols,). Returns y, shaped and typed like x."""
    raise NotImplementedError("rms_norm: choose the kernels by the shape")


if __name__ == "__main__":  # python wide.py
    for rows, cols in ((4, 1000), (2, 20000)):
        x, weight = torch.randn(rows, cols, device=DEVICE), torch.rand(cols, device=DEVICE)
        expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
        y = rms_norm(x, weight)
        print(rows, "x", cols, "largest error", (y - expected).abs().max().item())
