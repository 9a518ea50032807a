"""Kernels with and without races, and functions that launch them."""

import torch
import triton
import triton.language as tl


@triton.jit
def shared_sum(x_ptr, sum_ptr, n_cols, BLOCK: tl.constexpr):
    """Every program loads, adds and stores one sum."""
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + cols, mask=col_ok, other=0.0)
    total = tl.load(sum_ptr + cols, mask=col_ok, other=0.0)
    tl.store(sum_ptr + cols, total + x, mask=col_ok)


@triton.jit
def last_adds(x_ptr, partial_ptr, sum_ptr, n_cols, BLOCK: tl.constexpr):
    """The last program adds what the others have stored."""
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols
    mine = tl.program_id(0) * n_cols + cols
    tl.store(partial_ptr + mine, tl.load(x_ptr + mine, mask=col_ok), mask=col_ok)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        total = tl.zeros((BLOCK,), tl.float32)
        for program in range(0, tl.num_programs(0)):
            total += tl.load(partial_ptr + program * n_cols + cols, mask=col_ok, other=0.0)
        tl.store(sum_ptr + cols, total, mask=col_ok)


@triton.jit
def last_by_a_counter(x_ptr, partial_ptr, sum_ptr, counter_ptr, n_cols, BLOCK: tl.constexpr):
    """The same, ordered by an atomic counter."""
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols
    mine = tl.program_id(0) * n_cols + cols
    tl.store(partial_ptr + mine, tl.load(x_ptr + mine, mask=col_ok), mask=col_ok)
    tl.debug_barrier()
    if tl.atomic_add(counter_ptr, 1) == tl.num_programs(0) - 1:
        total = tl.zeros((BLOCK,), tl.float32)
        for program in range(0, tl.num_programs(0)):
            total += tl.load(partial_ptr + program * n_cols + cols, mask=col_ok, other=0.0)
        tl.store(sum_ptr + cols, total, mask=col_ok)


@triton.jit
def row_statistic(x_ptr, statistic_ptr, n_cols, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Programs of one row add to its statistic by load, add, store."""
    row = tl.program_id(0) // PARTS
    cols = tl.program_id(0) % PARTS * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(statistic_ptr + row, tl.load(statistic_ptr + row) + tl.sum(x * x, axis=0))


@triton.jit
def by_atomics(x_ptr, sum_ptr, n_cols, BLOCK: tl.constexpr):
    """Floating-point atomics: no race, and another order gives other bits."""
    cols = tl.arange(0, BLOCK)
    col_ok = cols < n_cols
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + cols, mask=col_ok, other=0.0)
    tl.atomic_add(sum_ptr + cols, x, mask=col_ok)


@triton.jit
def copy_row(x_ptr, y_ptr, n_cols, MASK: tl.constexpr, BLOCK: tl.constexpr):
    """MASK: of the load; what it loads past the end is thrown away by the store."""
    cols = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n_cols
    col_ok = cols < n_cols
    x = tl.load(x_ptr + row + cols, mask=col_ok | (not MASK))
    tl.store(y_ptr + row + cols, x, mask=col_ok)


@triton.jit
def copy_rows_in_a_loop(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    """Offsets of x in int64, those of y in int32."""
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(x_ptr + tl.cast(row, tl.int64) * n_cols + cols)
        tl.store(y_ptr + row * n_cols + cols, x)


@triton.jit
def halves(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """Two lanes write to one address."""
    lanes = tl.arange(0, BLOCK)
    tl.store(y_ptr + lanes // 2, tl.load(x_ptr + lanes))


def add_to_one_sum():
    shared_sum[(4,)](torch.randn(4, 5, device="cuda"), torch.zeros(5).cuda(), 5, BLOCK=8)


def let_the_last_add():
    last_adds[(4,)](torch.randn(4, 5), torch.empty(4, 5), torch.empty(5), 5, BLOCK=8)


def count_to_the_last():
    counter = torch.zeros(1, dtype=torch.int32)
    last_by_a_counter[(4,)](
        torch.randn(4, 5), torch.empty(4, 5), torch.empty(5), counter, 5, BLOCK=8
    )


def add_to_statistics():
    row_statistic[(6,)](torch.randn(2, 20), torch.zeros(2), 20, PARTS=3, BLOCK=8)


def add_by_atomics():
    by_atomics[(9,)](torch.randn(9, 5), torch.zeros(5), 5, BLOCK=8)


def copy():
    x = torch.randn(3, 5)
    y = torch.empty_like(x)
    copy_row[(3,)](x, y, 5, MASK=True, BLOCK=8)
    assert torch.equal(x, y)


@triton.jit
def shift_rows(x_ptr, n_cols, BLOCK: tl.constexpr):
    """In place, so that a program may find what its neighbor has written."""
    cols = tl.program_id(0) * n_cols + tl.arange(0, BLOCK)
    tl.store(x_ptr + cols, tl.load(x_ptr + n_cols + cols))


def shift_in_place():
    shift_rows[(3,)](torch.randn(4, 8), 8, BLOCK=8)


def store_without_a_mask():
    shift_rows[(1,)](torch.randn(7), 0, BLOCK=8)


def load_without_a_mask():
    copy_row[(3,)](torch.randn(3, 5), torch.empty(3, 5), 5, MASK=False, BLOCK=8)


def copy_nothing():
    copy_row[(1,)](torch.randn(1, 5), torch.empty(1, 5), 0, MASK=True, BLOCK=8)


def write_into_the_next_row():
    """The view has 5 columns of 8, and the kernel writes 8."""
    copy_row[(3,)](torch.randn(3, 8)[:, :5], torch.empty(3, 8)[:, :5], 8, MASK=True, BLOCK=8)


def far():
    x = torch.empty((1 << 21) + 77, 1024, device="meta")
    copy_rows_in_a_loop[(64,)](x, torch.empty_like(x), x.shape[0], 1024, BLOCK=1024)


def near():
    x = torch.empty((1 << 21) - 77, 1024, device="meta")
    copy_rows_in_a_loop[(64,)](x, torch.empty_like(x), x.shape[0], 1024, BLOCK=1024)


@triton.jit
def copy_rows_while(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    """A program has every n-th row; both loops are ``while``."""
    row = tl.program_id(0)
    while row < n_rows:
        start = 0
        while start < n_cols:
            place = row * n_cols + start + tl.arange(0, BLOCK)
            tl.store(y_ptr + place, tl.load(x_ptr + place))
            start += BLOCK
        row += tl.num_programs(0)


def far_while():
    x = torch.empty((1 << 21) + 77, 1024, device="meta")
    copy_rows_while[(64,)](x, torch.empty_like(x), x.shape[0], 1024, BLOCK=128)


def near_while():
    x = torch.empty((1 << 21) - 77, 1024, device="meta")
    copy_rows_while[(64,)](x, torch.empty_like(x), x.shape[0], 1024, BLOCK=128)


def all_turns():
    """Of tensors with contents every turn runs."""
    x, y = torch.randn(50, 64), torch.zeros(50, 64)
    copy_rows_while[(2,)](x, y, 50, 64, BLOCK=16)
    assert torch.equal(x, y)


def store_halves():
    halves[(1,)](torch.randn(8), torch.empty(4), BLOCK=8)


def no_kernel():
    return torch.zeros(3)


@triton.jit
def annotated_kernel(x_ptr, y_ptr, stride: tl.int64, BLOCK: tl.constexpr):
    """A stride that is annotated is an int64."""
    place = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    tl.store(y_ptr + place, tl.load(x_ptr + place))


def annotated():
    x = torch.empty((1 << 31) // 4096 + 1024, 4096, dtype=torch.float16, device="meta")
    annotated_kernel[(len(x),)](x, torch.empty_like(x), x.stride(0), BLOCK=4096)


RIGHT = (count_to_the_last, copy, near, near_while, all_turns, annotated)
WRONG = {  # the kinds that must be found, and no other
    add_to_one_sum: {"read-write", "write-write", "order"},
    let_the_last_add: {"read-write", "order"},
    shift_in_place: {"read-write", "order"},
    add_to_statistics: {"read-write", "write-write", "order"},
    add_by_atomics: {"order"},
    load_without_a_mask: {"bounds"},
    store_without_a_mask: {"bounds"},
    far: {"int32"},
    far_while: {"int32"},
    store_halves: {"lanes"},
}
