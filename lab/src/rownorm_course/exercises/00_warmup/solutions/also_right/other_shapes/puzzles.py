"""Eight puzzles, solved with other shapes."""

import torch

from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)[None, :]
    for first in tl.static_range(0, BLOCK, BLOCK):  # a loop of one turn
        ok = first + lanes < n
        x = tl.load(x_ptr + first + lanes, mask=ok, other=7.0)
        tl.store(y_ptr + first + lanes, x, mask=ok)


def copy(x):
    y = torch.full(x.shape, 3.0, device=x.device)
    copy_kernel[(1, 1, 1)](x, y, x.numel(), BLOCK=1024)
    return y


@triton.jit
def row_sum_kernel(x_ptr, sums_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    """Rows from the last to the first, in blocks; two programs have none."""
    row = n_rows - 1 - tl.program_id(0)
    if row >= 0:
        total = 0.0
        for first in range(0, n_cols, BLOCK):
            cols = first + tl.arange(0, BLOCK)
            total += tl.sum(tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0))
        tl.store(sums_ptr + row, total)


def row_sum(x):
    n_rows, n_cols = x.shape
    sums = torch.empty(n_rows, device=x.device)
    row_sum_kernel[(n_rows + 2,)](x, sums, n_rows, n_cols, BLOCK=4)
    return sums


@triton.jit
def part(ptr, place, n):
    return tl.load(ptr + place, mask=place < n, other=0.0)


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr, PART: tl.constexpr):
    for first in tl.static_range(0, BLOCK, PART):
        place = tl.program_id(0) * BLOCK + first + tl.arange(0, PART)
        tl.store(z_ptr + place, part(x_ptr, place, n) + part(y_ptr, place, n), mask=place < n)


def add(x, y):
    z = x.new_empty(x.shape)
    add_kernel[(triton.cdiv(x.numel(), 128) + 1,)](x, y, z, x.numel(), BLOCK=128, PART=32)
    return z


@triton.jit
def scale_kernel(x_ptr, weight_ptr, y_ptr, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile as one long block."""
    lanes = tl.arange(0, ROWS * BLOCK)
    row, col = tl.program_id(0) * ROWS + lanes // BLOCK, lanes % BLOCK
    ok = (row < n_rows) & (col < n_cols)
    x = tl.load(x_ptr + row * n_cols + col, mask=ok)
    weight = tl.load(weight_ptr + col, mask=ok)
    tl.store(y_ptr + row * n_cols + col, x * weight, mask=ok)


def scale(x, weight):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(n_rows, 2),)](x, weight, y, n_rows, n_cols, ROWS=2, BLOCK=512)
    return y


@triton.jit
def double_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for first in range(0, n_cols, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=n_cols > cols)
        tl.store(y_ptr + row * n_cols + cols, x + x, mask=n_cols > cols)


def double(x):
    y = torch.empty_like(x)
    double_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=4)
    return y


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def largest_kernel(x_ptr, largest_ptr, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """All rows in one tile."""
    rows, cols = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    ok = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    x = tl.load(x_ptr + rows[:, None] * n_cols + cols[None, :], mask=ok, other=0.0)
    tl.store(largest_ptr + rows, tl.reduce(tl.abs(x), 1, larger), mask=rows < n_rows)


def largest(x):
    found = torch.empty(x.shape[0], device=x.device)
    n_rows, n_cols = x.shape
    sizes = {"ROWS": triton.next_power_of_2(n_rows), "BLOCK": triton.next_power_of_2(n_cols)}
    largest_kernel[(1,)](x, found, n_rows, n_cols, **sizes)
    return found


@triton.jit
def copy_strided_kernel(x_ptr, y_ptr, x_row, x_col, n_rows, n_cols, BLOCK: tl.constexpr):
    """One program goes through all elements, in the order of y."""
    for first in range(0, n_rows * n_cols, BLOCK):
        place = first + tl.arange(0, BLOCK)
        ok = place < n_rows * n_cols
        x = tl.load(x_ptr + place // n_cols * x_row + place % n_cols * x_col, mask=ok)
        tl.store(y_ptr + place, x, mask=ok)


def copy_strided(x):
    y = torch.empty(x.numel(), device=x.device)
    copy_strided_kernel[(1,)](x, y, *x.stride(), *x.shape, BLOCK=16)
    return y.view(x.shape)


@triton.jit
def partial_kernel(x_ptr, partial_ptr, n, BLOCK: tl.constexpr):
    """Every program has every num_programs-th element."""
    programs = tl.num_programs(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK * programs):
        place = first + tl.arange(0, BLOCK) * programs + tl.program_id(0)
        total += tl.load(x_ptr + place, mask=place < n, other=0.0)
    tl.store(partial_ptr + tl.program_id(0), tl.sum(total))


@triton.jit
def finish_kernel(partial_ptr, total_ptr, n):
    total = tl.load(partial_ptr)
    for i in range(1, n):
        total += tl.load(partial_ptr + i)
    tl.store(total_ptr, total)


def total(x):
    partial = torch.zeros(64, device=x.device)
    fewer = torch.zeros(4, device=x.device)
    found = torch.zeros(1, device=x.device)
    partial_kernel[(64,)](x, partial, x.numel(), BLOCK=32)
    partial_kernel[(4,)](partial, fewer, 64, BLOCK=16)
    finish_kernel[(1,)](fewer, found, 4)
    return found[0].clone()
