"""A norm of your own, for the lab to check, measure, analyze and tune: docs/own-kernel.md uses this file.

    python examples/own_kernel.py     # one call, compared with PyTorch; needs a GPU, or TRITON_INTERPRET=1

``rms_norm`` is an ordinary function. ``rms_norm_kernel`` reads a row twice, in blocks of BLOCK columns.
"""

# mypy: ignore-errors
# Triton's language; mypy cannot check it.

import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, row_stride, n_cols, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * row_stride

    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        squares += x * x
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + eps)

    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        y = (x * rstd * weight).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + start + cols, y, mask=cols < n_cols)


def rms_norm(x, weight, eps=1e-5):
    """y = x / sqrt(mean(x^2) + eps) * weight; x: (rows, columns), contiguous rows; weight: (columns,)."""
    y = torch.empty_like(x)
    n_rows, n_cols = x.shape
    rms_norm_kernel[(n_rows,)](x, weight, y, x.stride(0), n_cols, eps, BLOCK=1024, num_warps=4)
    return y


def main(n_rows=8192, n_cols=4096, dtype=torch.bfloat16):
    """Normalize once."""
    x = torch.randn(n_rows, n_cols, dtype=dtype, device=DEVICE)
    return x, rms_norm(x, torch.ones(n_cols, dtype=dtype, device=DEVICE))


if __name__ == "__main__":
    x, y = main(n_rows=64)
    expected = torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5)
    print(f"largest difference from PyTorch: {(y - expected).abs().max().item():.3g}")
