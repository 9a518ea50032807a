"""Softmax with one program for each row. Read it; nothing is to be changed here.

    y = exp(scale * x - m) / sum(exp(scale * x - m)), m = max(scale * x), scale > 0          for each row of x

python kernel.py ROWS COLS BLOCK
"""

import sys

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_row_ptr = x_ptr + row * n_cols
    y_row_ptr = y_ptr + row * n_cols

    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=float("-inf")).to(tl.float32)
        highest = tl.maximum(highest, x * scale)
    m = tl.max(highest, axis=0)

    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=float("-inf")).to(tl.float32)
        sums += tl.exp(x * scale - m)
    total = tl.sum(sums, axis=0)

    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=float("-inf")).to(tl.float32)
        y = tl.exp(x * scale - m) / total
        tl.store(y_row_ptr + cols, y.to(y_ptr.dtype.element_ty), mask=cols < n_cols)


def softmax(x, scale=1.0, block=256):
    """x: (rows, cols), contiguous."""
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(n_rows,)](x, y, n_cols, scale, BLOCK=block)
    return y


def checksum(rows, cols, block):
    """A number that depends on every element of the output."""
    place = torch.arange(rows * cols, device=DEVICE, dtype=torch.float32).reshape(rows, cols)
    y = softmax(torch.sin(place), 2.0, block=block)
    return round((y * (1 + place % cols)).sum().item(), 2)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("python kernel.py ROWS COLS BLOCK, for example python kernel.py 5 1000 256")
    print("checksum", checksum(*map(int, sys.argv[1:])))
