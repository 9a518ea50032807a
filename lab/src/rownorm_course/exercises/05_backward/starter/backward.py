"""The gradients of RMSNorm."""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl

PROGRAMS = 64

# TODO: a kernel for dx and the partial sums of dweight
# TODO: a kernel that adds up the partial sums


def rms_norm_backward(dy, x, weight, rstd):
    """dy, x: (rows, cols), contiguous; weight: (cols,); rstd: (rows,), fp32. Returns (dx, dweight)."""
    raise NotImplementedError("rms_norm_backward")


if __name__ == "__main__":  # python backward.py
    dy, x = torch.randn(2, 100, 300, device=DEVICE)
    weight = torch.rand(300, device=DEVICE)
    rstd = torch.rsqrt(x.square().mean(-1) + 1e-6)
    x_hat, g = x * rstd[:, None], dy * weight
    dx, dweight = rms_norm_backward(dy, x, weight, rstd)
    expected = rstd[:, None] * (g - x_hat * (g * x_hat).mean(-1, keepdim=True))
    print("dx: largest error", (dx - expected).abs().max().item())
    print("dweight: largest error", (dweight - (dy * x_hat).sum(0)).abs().max().item())
