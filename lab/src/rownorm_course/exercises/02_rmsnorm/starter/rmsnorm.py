"""RMSNorm: a kernel, a function and a module."""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    """One program computes one row, in blocks of BLOCK columns."""
    row = tl.program_id(0)
    # TODO: the sum of squares, in fp32
    # TODO: rstd = 1 / sqrt(sum / n_cols + eps)
    # TODO: y = x * rstd * weight, stored in the dtype of y
    pass


def rms_norm(x, weight, eps=1e-6, block=1024):
    """x: (rows, cols), any row stride; weight: (cols,). Returns y, shaped and typed like x."""
    raise NotImplementedError(
        "rms_norm: allocate y, start the kernel with one program for each row"
    )


class RMSNorm(torch.nn.Module):
    """Like torch.nn.RMSNorm; x may have any shape whose last dimension is dim."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x):
        raise NotImplementedError("RMSNorm.forward: so that gradients reach x and self.weight")


if __name__ == "__main__":  # python rmsnorm.py
    x, weight = torch.randn(4, 1000, device=DEVICE), torch.rand(1000, device=DEVICE)
    y = rms_norm(x, weight)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    print("y       ", y[0, :4])
    print("expected", expected[0, :4])
    print("largest error", (y - expected).abs().max().item())
