"""RMSNorm for the Definition rmsnorm_d4096."""

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x_ptr, weight_ptr, out_ptr, eps, hidden, BLOCK: tl.constexpr):
    """One program computes one row."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    col_ok = cols < hidden
    x = tl.load(x_ptr + row * hidden + cols, mask=col_ok, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / hidden + tl.cast(eps, tl.float32))
    out = (x * rstd * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * hidden + cols, out, mask=col_ok)


def run(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor):
    """x, out: (batch, 4096), fp16; weight: (4096,); eps: a float. Writes out."""
    batch, hidden = x.shape
    block = triton.next_power_of_2(hidden)
    rmsnorm_kernel[(batch,)](x, weight, out, eps, hidden, BLOCK=block, num_warps=8)


if (
    __name__ == "__main__"
):  # TRITON_INTERPRET=1 python triton_rmsnorm.py; with a GPU, python triton_rmsnorm.py
    from rownorm_course.interpreter import DEVICE

    x = torch.randn(3, 4096, device=DEVICE, dtype=torch.float16)
    weight, out = torch.rand_like(x[0]), torch.empty_like(x)
    run(x, weight, 1e-6, out)
    rows = x.float()
    expected = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6) * weight
    print(
        "largest error",
        (out - expected).abs().max().item(),
        "of values up to",
        expected.abs().max().item(),
    )
