"""Two norms with something before or after them, each in one kernel."""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl

# TODO: a kernel


def rms_norm_relu(x, weight, eps=1e-6):
    """max(rms_norm(x) * weight, 0); x: (rows, cols), any row stride."""
    raise NotImplementedError("rms_norm_relu")


# TODO: a kernel


def bias_layer_norm(x, pre_bias, weight, bias, eps=1e-5):
    """layer_norm(x + pre_bias) * weight + bias; pre_bias, weight, bias: (cols,)."""
    raise NotImplementedError("bias_layer_norm")


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
