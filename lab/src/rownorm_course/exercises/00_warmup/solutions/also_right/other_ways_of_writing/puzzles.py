"""Eight puzzles, solved by a learner in other ways."""

import torch

from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    lanes = BLOCK - 1 - tl.arange(0, BLOCK)  # backward
    v = tl.load(x_ptr + lanes, lanes < n)
    tl.store(y_ptr + lanes, v, lanes < n)


def copy(x):
    y = torch.empty_like(x)
    copy_kernel[(1,)](x, y, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    return y


@triton.jit
def row_sum_kernel(x_ptr, sums_ptr, n_cols, BLOCK: tl.constexpr):
    pid = tl.program_id(axis=0)
    o = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + pid * n_cols + o, mask=o < n_cols, other=float("-inf"))
    x = tl.where(o < n_cols, x, 0)
    tl.store(sums_ptr + pid, tl.reduce(x, 0, plus))


@triton.jit
def plus(a, b):
    return a + b


def row_sum(x):
    n_rows, n_cols = x.shape
    sums = torch.empty(n_rows, device=x.device)
    row_sum_kernel[(n_rows,)](x, sums, n_cols, BLOCK=triton.next_power_of_2(n_cols))
    return sums


@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    x_blk = tl.make_block_ptr(x_ptr, (n,), (1,), (start,), (BLOCK,), (0,))
    y_blk = tl.make_block_ptr(y_ptr, (n,), (1,), (start,), (BLOCK,), (0,))
    z_blk = tl.make_block_ptr(z_ptr, (n,), (1,), (start,), (BLOCK,), (0,))
    z = tl.load(x_blk, boundary_check=(0,)) + tl.load(y_blk, boundary_check=(0,))
    tl.store(z_blk, z, boundary_check=(0,))


def add(x, y):
    z = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, z, x.numel(), BLOCK=1024)
    return z


@triton.jit
def scale_kernel(x_ptr, weight_ptr, y_ptr, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    flat = tl.arange(0, ROWS * BLOCK)
    tile = tl.reshape(flat, (ROWS, BLOCK))
    r = tl.program_id(0) * ROWS + tile // BLOCK
    c = tile % BLOCK
    ok = (r < n_rows) & (c < n_cols)
    w = tl.load(weight_ptr + c, mask=c < n_cols, other=0.0)
    tl.store(
        y_ptr + r * n_cols + c, tl.load(x_ptr + r * n_cols + c, mask=ok, other=0.0) * w, mask=ok
    )


def scale(x, weight):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    block = triton.next_power_of_2(n_cols)
    scale_kernel[(triton.cdiv(n_rows, 4),)](x, weight, y, n_rows, n_cols, ROWS=4, BLOCK=block)
    return y


@triton.jit
def double_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    ok = cols <= n_cols - 1
    x = tl.load(x_ptr + row * n_cols + cols, mask=ok)
    tl.store(y_ptr + row * n_cols + cols, 2 * x, mask=ok)


def double(x):
    y = torch.empty_like(x)
    double_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1] + 1))
    return y


@triton.jit
def larger(a, b):
    return tl.where(tl.abs(a) > tl.abs(b), tl.abs(a), tl.abs(b))


@triton.jit
def largest_kernel(x_ptr, largest_ptr, n_cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + i, mask=i < n_cols, other=0)
    tl.store(largest_ptr + tl.program_id(0), tl.abs(tl.reduce(x, 0, larger)))


def largest(x):
    found = torch.empty(x.shape[0], device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    largest_kernel[(x.shape[0],)](x, found, x.shape[1], BLOCK=block)
    return found


@triton.jit
def copy_strided_kernel(
    x_ptr, y_ptr, x_row, x_col, n_rows, n_cols, R: tl.constexpr, BLOCK: tl.constexpr
):
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    ok = (r < n_rows) & (c < n_cols)
    tl.store(y_ptr + r * n_cols + c, tl.load(x_ptr + r * x_row + c * x_col, ok), ok)


def copy_strided(x):
    y = torch.empty(x.shape, device=x.device)
    m, n = x.shape
    grid = lambda meta: (triton.cdiv(m, meta["R"]), triton.cdiv(n, meta["BLOCK"]))
    copy_strided_kernel[grid](x, y, *x.stride(), m, n, R=2, BLOCK=4)
    return y


@triton.jit
def partial_kernel(x_ptr, partial_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(pid * BLOCK, n, tl.num_programs(0) * BLOCK):
        o = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + o, mask=o < n, other=0.0)
    tl.store(partial_ptr + pid, tl.sum(acc))


@triton.jit
def finish_kernel(partial_ptr, total_ptr, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(total_ptr, tl.sum(tl.load(partial_ptr + o, mask=o < n, other=0.0)))


def total(x):
    part = x.new_empty(8)
    out = x.new_empty(())
    partial_kernel[(8,)](x, part, x.numel(), BLOCK=256)
    finish_kernel[1,](part, out, 8, BLOCK=8)
    return out
