"""RMSNorm with one program for each row. Read it; nothing is to be changed here.

python kernel.py ROWS COLS BLOCK
"""

import sys

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * n_cols
    y_row_ptr = y_ptr + row * n_cols

    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        squares += x * x
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + tl.cast(eps, tl.float32))

    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        y = x * rstd * weight
        tl.store(y_row_ptr + cols, y.to(y_ptr.dtype.element_ty), mask=cols < n_cols)


def rms_norm(x, weight, eps=1e-6, block=256):
    """x: (rows, cols), contiguous; weight: (cols,)."""
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    rms_norm_kernel[(n_rows,)](x, weight, y, n_cols, eps, BLOCK=block)
    return y


def checksum(rows, cols, block):
    """A number that depends on every element of the output."""
    place = torch.arange(rows * cols, device=DEVICE, dtype=torch.float32).reshape(rows, cols)
    x = torch.sin(place)
    weight = 1 + torch.arange(cols, device=DEVICE, dtype=torch.float32) / cols
    return round(rms_norm(x, weight, block=block).abs().sum().item(), 2)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("python kernel.py ROWS COLS BLOCK, for example python kernel.py 5 1000 256")
    print("checksum", checksum(*map(int, sys.argv[1:])))
