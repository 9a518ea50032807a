"""LayerNorm: three ways to a variance that survives a large mean, and a row that shows why."""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def three_pass_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    """Mean, squared deviations, output: three loops over the row."""
    # TODO
    pass


def layer_norm_three_pass(x, weight, bias, eps=1e-5):
    """x: (rows, cols), any row stride; weight, bias: (cols,). Returns y, shaped and typed like x."""
    raise NotImplementedError("layer_norm_three_pass")


# TODO: a kernel with shifted sums


def layer_norm_two_pass(x, weight, bias, eps=1e-5):
    """The same with two loops over the row: shifted sums, then the output."""
    raise NotImplementedError("layer_norm_two_pass")


# TODO: a kernel that merges blocks


def layer_norm_welford(x, weight, bias, eps=1e-5):
    """The same with two loops over the row: merged blocks, then the output."""
    raise NotImplementedError("layer_norm_welford")


# TODO: a kernel that holds a row in registers


def layer_norm_tuned(x, weight, bias, eps=1e-5):
    """The same with one pass, for 128 to 8192 columns; block and num_warps follow from the width."""
    raise NotImplementedError("layer_norm_tuned")


def breaking_row():
    """A float32 vector whose variance mean(x^2) - mean(x)^2 gets wrong by more than half, in fp32."""
    raise NotImplementedError("breaking_row")


if __name__ == "__main__":  # python layernorm.py
    x = 3 + torch.randn(4, 1000, device=DEVICE)
    weight, bias = torch.rand(2, 1000, device=DEVICE)
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    expected = (x - mean) * torch.rsqrt(var + 1e-5) * weight + bias
    functions = (layer_norm_three_pass, layer_norm_two_pass, layer_norm_welford, layer_norm_tuned)
    for function in functions:
        y = function(x, weight, bias)
        print(function.__name__, "largest error", (y - expected).abs().max().item())
