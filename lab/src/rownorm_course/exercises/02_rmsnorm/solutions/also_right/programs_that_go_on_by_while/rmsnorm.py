"""RMSNorm by programs that go on with ``while``."""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, y_ptr, x_row_stride, y_row_stride, n_rows, n_cols, eps, BLOCK: tl.constexpr
):
    """A program has every n-th row."""
    row = tl.program_id(0)
    while row < n_rows:
        x_row_ptr = x_ptr + row.to(tl.int64) * x_row_stride
        y_row_ptr = y_ptr + row.to(tl.int64) * y_row_stride
        total = 0.0
        first = 0
        while first < n_cols:
            cols = first + tl.arange(0, BLOCK)
            x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
            total += tl.sum(x * x)
            first += BLOCK
        rstd = tl.rsqrt(total / n_cols + eps)
        first = 0
        while first < n_cols:
            cols = first + tl.arange(0, BLOCK)
            ok = cols < n_cols
            x = tl.load(x_row_ptr + cols, mask=ok).to(tl.float32)
            weight = tl.load(weight_ptr + cols, mask=ok).to(tl.float32)
            tl.store(y_row_ptr + cols, x * rstd * weight, mask=ok)
            first += BLOCK
        row += tl.num_programs(0)


def rms_norm(x, weight, eps=1e-6, block=1024):
    n_rows, n_cols = x.shape
    y = torch.empty((n_rows, n_cols), dtype=x.dtype, device=x.device)
    rms_norm_kernel[(min(n_rows, 132),)](
        x, weight, y, x.stride(0), y.stride(0), n_rows, n_cols, eps, BLOCK=block
    )
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
