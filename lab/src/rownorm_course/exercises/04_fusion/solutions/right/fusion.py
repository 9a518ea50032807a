"""Two norms with something before or after them, each in one kernel.

Answers to the questions of the text:

1. Smaller if the tensor between the operators stays in L2, so that the second operator reads no memory. Larger if
   torch computes the norm in more kernels than one. On an H200, RMSNorm + ReLU of 32768 x 4096 in bf16 takes 127 µs fused
   and 254 in two steps; ncu counts 511 MB and 1.02 GB.
2. A launch and a call: some microseconds each, which is all there is to the time of a small tensor.
3. Rarely. A matrix product is limited by arithmetic and has its own tiling. The norm's row sums need whole rows.
"""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def rms_norm_relu_kernel(x_ptr, weight_ptr, y_ptr, x_row_stride, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=col_ok, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)

    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / n_cols + tl.cast(eps, tl.float32))
    y = tl.maximum(x * rstd * weight, 0.0)

    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=col_ok)


@triton.jit
def bias_layer_norm_kernel(
    x_ptr, pre_bias_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols
    h = tl.load(x_ptr + row * x_row_stride + cols, mask=col_ok, other=0.0).to(tl.float32)
    h += tl.load(pre_bias_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)

    mean = tl.sum(h, axis=0) / n_cols
    deviation = tl.where(col_ok, h - mean, 0.0)
    variance = tl.sum(deviation * deviation, axis=0) / n_cols
    rstd = 1.0 / tl.sqrt(variance + tl.cast(eps, tl.float32))
    y = deviation * rstd * weight + bias

    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=col_ok)


def rms_norm_relu(x, weight, eps=1e-6):
    """max(rms_norm(x) * weight, 0); x: (rows, cols), any row stride."""
    n_rows, n_cols = x.shape
    y = torch.empty((n_rows, n_cols), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(n_cols)
    rms_norm_relu_kernel[(n_rows,)](x, weight, y, x.stride(0), n_cols, eps, BLOCK=block)
    return y


def bias_layer_norm(x, pre_bias, weight, bias, eps=1e-5):
    """layer_norm(x + pre_bias) * weight + bias; pre_bias, weight, bias: (cols,)."""
    n_rows, n_cols = x.shape
    y = torch.empty((n_rows, n_cols), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(n_cols)
    bias_layer_norm_kernel[(n_rows,)](
        x, pre_bias, weight, bias, y, x.stride(0), n_cols, eps, BLOCK=block
    )
    return y


if __name__ == "__main__":  # python fusion.py
    x = torch.randn(4, 1000, device=DEVICE)
    pre_bias, weight, bias = torch.randn(3, 1000, device=DEVICE)
    expected = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight).relu()
    y = rms_norm_relu(x, weight)
    print("rms_norm_relu: largest error", (y - expected).abs().max().item())
    h = x + pre_bias
    mean, var = h.mean(-1, keepdim=True), h.var(-1, keepdim=True, correction=0)
    expected = (h - mean) * torch.rsqrt(var + 1e-5) * weight + bias
    y = bias_layer_norm(x, pre_bias, weight, bias)
    print("bias_layer_norm: largest error", (y - expected).abs().max().item())
