"""RMSNorm: a kernel, a function and a module.

Answers to the questions of the text:

1. On an H200, 32768 x 4096 in bf16: 350 µs with 64 columns, 201 with 128, 153 with 256, 141 with 512, 154 with 1024, 144
   with 4096. Wider blocks have wider loads and more bytes on their way, until memory is busy; from 256 on little changes,
   and 512 is best by a little. Occupancy is 100% up to 1024. `rownorm analyze ... --blocks` shows these figures.
2. The second read of a row comes a moment after the first, so it is served by L2 or L1. Memory moves x once and y once:
   for 65536 x 8192, ncu counts 1,074 MB read by such a kernel, which is x. With 65536 columns the rows in work are more
   than L2 holds, and it reads 1,656 MB.
3. A block of 65536 fp32 values over 16 warps is 128 registers for each thread for the row alone; wider ones spill.
"""

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
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride
    y_row_ptr = y_ptr + row * y_row_stride

    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        squares += x * x
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + tl.cast(eps, tl.float32))

    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        col_ok = cols < n_cols
        x = tl.load(x_row_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        tl.store(y_row_ptr + cols, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=col_ok)


def rms_norm(x, weight, eps=1e-6, block=1024):
    """x: (rows, cols), any row stride; weight: (cols,). Returns y, shaped and typed like x."""
    n_rows, n_cols = x.shape
    y = torch.empty((n_rows, n_cols), dtype=x.dtype, device=x.device)
    rms_norm_kernel[(n_rows,)](x, weight, y, x.stride(0), y.stride(0), n_cols, eps, BLOCK=block)
    return y


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return rms_norm(x, weight, eps)

    @staticmethod
    def backward(ctx, dy):
        x, weight = (saved.float() for saved in ctx.saved_tensors)
        dy = dy.float()
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
        x_hat, g = x * rstd, dy * weight
        dx = rstd * (g - x_hat * (g * x_hat).mean(-1, keepdim=True))
        dweight = (dy * x_hat).sum(0)
        saved_x, saved_weight = ctx.saved_tensors
        return dx.to(saved_x.dtype), dweight.to(saved_weight.dtype), None


class RMSNorm(torch.nn.Module):
    """Like torch.nn.RMSNorm; x may have any shape whose last dimension is dim."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        return _RMSNorm.apply(rows, self.weight, self.eps).reshape(x.shape)


if __name__ == "__main__":  # python rmsnorm.py
    x, weight = torch.randn(4, 1000, device=DEVICE), torch.rand(1000, device=DEVICE)
    y = rms_norm(x, weight)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    print("y       ", y[0, :4])
    print("expected", expected[0, :4])
    print("largest error", (y - expected).abs().max().item())
