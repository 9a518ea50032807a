"""Kernels as users write them, with the ways in which they find their GPU."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=ok) + tl.load(y_ptr + at, mask=ok), mask=ok)


def add(x, y):
    out = torch.empty_like(x)
    assert x.device == DEVICE
    assert y.is_cuda
    n = out.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)
    return out


def main():
    x, y = torch.rand(2, 99_008, device="cuda")
    print(f"off by {(add(x, y) - x - y).abs().max().item()}")  # values: fake tensors have none


def two_sizes():
    for n in (4096, 8192, 4096):
        add(torch.rand(n).cuda(), torch.rand(n, device=DEVICE))


@triton.jit
def rows_kernel(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        cols = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
        tl.store(y_ptr + row * n_cols + cols, x / tl.sum(x), mask=cols < n_cols)


def rows():
    x = torch.randn(1000, 1000, device="cuda")
    n_programs = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    rows_kernel[(n_programs,)](x, torch.empty_like(x), 1000, 1000, BLOCK=1024, num_warps=8)


@triton.jit
def gather_kernel(x_ptr, index_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + at, mask=at < n, other=0)
    tl.store(y_ptr + at, tl.load(x_ptr + index), mask=at < n)


def gather():
    n = 1 << 16
    index = torch.randint(n, (n,), device="cuda")
    gather_kernel[(n // 1024,)](torch.rand(n), index, torch.empty(n), n, BLOCK=1024)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 32})], key=["M"])
@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, M, K, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(0, K, 32):
        k = first + tl.arange(0, 32)
        a = tl.load(a_ptr + rows[:, None] * K + k[None, :])
        total = tl.dot(a, tl.load(b_ptr + k[:, None] * M + cols[None, :]), total)
    tl.store(c_ptr + rows[:, None] * M + cols[None, :], total.to(tl.float16))


def product():
    a = torch.randn(256, 128, dtype=torch.float16, device="cuda")
    b, c = a.T.contiguous(), torch.empty(256, 256, dtype=torch.float16, device="cuda")
    product_kernel[lambda meta: (256 // meta["BLOCK"],) * 2](a, b, c, 256, 128)


def fails():
    raise RuntimeError("not today")
