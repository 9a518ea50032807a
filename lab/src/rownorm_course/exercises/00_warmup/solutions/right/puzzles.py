"""Eight puzzles."""

import torch

# Before Triton: without a GPU, kernels run in its interpreter.
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """y = x, n elements; BLOCK >= n."""
    lanes = tl.arange(0, BLOCK)
    ok = lanes < n
    tl.store(y_ptr + lanes, tl.load(x_ptr + lanes, mask=ok), mask=ok)


def copy(x):
    y = torch.empty_like(x)
    copy_kernel[(1,)](x, y, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    return y


@triton.jit
def row_sum_kernel(x_ptr, sums_ptr, n_cols, BLOCK: tl.constexpr):
    """The sum of one row of a contiguous x; BLOCK >= n_cols."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(sums_ptr + row, tl.sum(x, axis=0))


def row_sum(x):
    n_rows, n_cols = x.shape
    sums = torch.empty(n_rows, device=x.device)
    row_sum_kernel[(n_rows,)](x, sums, n_cols, BLOCK=triton.next_power_of_2(n_cols))
    return sums


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    """z = x + y; each program has BLOCK elements."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = place < n
    z = tl.load(x_ptr + place, mask=ok) + tl.load(y_ptr + place, mask=ok)
    tl.store(z_ptr + place, z, mask=ok)


def add(x, y):
    z = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 256),)](x, y, z, x.numel(), BLOCK=256)
    return z


@triton.jit
def scale_kernel(x_ptr, weight_ptr, y_ptr, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """y = x * weight; each program has a tile of ROWS rows and BLOCK >= n_cols columns."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    offsets = rows[:, None] * n_cols + cols[None, :]
    ok = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
    x = tl.load(x_ptr + offsets, mask=ok, other=0.0)
    weight = tl.load(weight_ptr + cols, mask=cols < n_cols, other=0.0)
    tl.store(y_ptr + offsets, x * weight[None, :], mask=ok)


def scale(x, weight):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    block = triton.next_power_of_2(n_cols)
    scale_kernel[(triton.cdiv(n_rows, 4),)](x, weight, y, n_rows, n_cols, ROWS=4, BLOCK=block)
    return y


@triton.jit
def double_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    """y = 2 * x, one row for each program. Something is wrong with the mask."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    ok = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=ok)
    tl.store(y_ptr + row * n_cols + cols, 2 * x, mask=ok)


def double(x):
    y = torch.empty_like(x)
    double_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1] + 1))
    return y


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def largest_kernel(x_ptr, largest_ptr, n_cols, BLOCK: tl.constexpr):
    """The largest magnitude of one row, by tl.reduce."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(largest_ptr + row, tl.reduce(tl.abs(x), 0, larger))


def largest(x):
    found = torch.empty(x.shape[0], device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    largest_kernel[(x.shape[0],)](x, found, x.shape[1], BLOCK=block)
    return found


@triton.jit
def copy_strided_kernel(x_ptr, y_ptr, x_row, x_col, n_cols, BLOCK: tl.constexpr):
    """y = x, one row for each program; y is contiguous."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    ok = cols < n_cols
    x = tl.load(x_ptr + row * x_row + cols * x_col, mask=ok)
    tl.store(y_ptr + row * n_cols + cols, x, mask=ok)


def copy_strided(x):
    n_rows, n_cols = x.shape
    y = torch.empty((n_rows, n_cols), device=x.device)
    block = triton.next_power_of_2(n_cols)
    copy_strided_kernel[(n_rows,)](x, y, x.stride(0), x.stride(1), n_cols, BLOCK=block)
    return y


@triton.jit
def partial_kernel(x_ptr, partial_ptr, n, BLOCK: tl.constexpr):
    """The sum of BLOCK elements, to a place of its own."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n, other=0.0)
    tl.store(partial_ptr + tl.program_id(0), tl.sum(x, axis=0))


@triton.jit
def finish_kernel(partial_ptr, total_ptr, n, BLOCK: tl.constexpr):
    """The sum of all partial sums, by one program."""
    lanes = tl.arange(0, BLOCK)
    tl.store(total_ptr, tl.sum(tl.load(partial_ptr + lanes, mask=lanes < n, other=0.0), axis=0))


def total(x):
    programs = triton.cdiv(x.numel(), 256)
    partial = torch.empty(programs, device=x.device)
    found = torch.empty(1, device=x.device)
    partial_kernel[(programs,)](x, partial, x.numel(), BLOCK=256)
    finish_kernel[(1,)](partial, found, programs, BLOCK=triton.next_power_of_2(programs))
    return found


# To try a puzzle, and for its picture: rownorm race puzzles.py:try_mask --out page.html


def try_mask():
    x = torch.randn(5, device=DEVICE)
    print("y", copy(x), "expected", x)


def try_sum():
    x = torch.randn(3, 5, device=DEVICE)
    print("sums", row_sum(x), "expected", x.sum(1))


def try_blocks():
    x, y = torch.randn(2, 1000, device=DEVICE)
    print("largest error", (add(x, y) - (x + y)).abs().max())


def try_tile():
    x, weight = torch.randn(6, 3, device=DEVICE), torch.randn(3, device=DEVICE)
    print("y", scale(x, weight), "expected", x * weight)


def try_mend():
    x = torch.randn(3, 5, device=DEVICE)
    print("y", double(x), "expected", 2 * x)


def try_reduce():
    x = torch.randn(3, 5, device=DEVICE)
    print("largest", largest(x), "expected", x.abs().amax(1))


def try_strides():
    x = torch.randn(6, 10, device=DEVICE).t()
    print("largest error", (copy_strided(x) - x).abs().max())


def try_total():
    x = torch.randn(1000, device=DEVICE)
    print("total", total(x), "expected", x.sum())


if __name__ == "__main__":  # python puzzles.py
    try_mask()
