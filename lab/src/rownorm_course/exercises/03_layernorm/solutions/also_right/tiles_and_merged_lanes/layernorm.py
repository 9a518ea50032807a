"""LayerNorm, by a learner with other habits: tiles of rows, tl.reduce with a tuple, one kernel with a constant."""

import torch
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def combine(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    share = tl.where(n == 0.0, 0.0, n_b / n)
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def norm(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    sx,
    sy,
    rows,
    n,
    eps,
    HOW: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    row = (tl.program_id(0) * R + tl.arange(0, R))[:, None]
    live = row < rows
    x_ptr += row.to(tl.int64) * sx
    y_ptr += row.to(tl.int64) * sy
    lanes = tl.arange(0, B)[None, :]
    if HOW == "three":
        s = tl.zeros((R, B), tl.float32)
        for i in range(0, n, B):
            c = i + lanes
            s += tl.load(x_ptr + c, mask=live & (c < n), other=0).to(tl.float32)
        mean = (tl.sum(s, 1) / n)[:, None]
        s = tl.zeros((R, B), tl.float32)
        for i in range(0, n, B):
            c = i + lanes
            d = tl.load(x_ptr + c, mask=live & (c < n), other=0).to(tl.float32) - mean
            d = tl.where(c < n, d, 0)
            s += d * d
        var = (tl.sum(s, 1) / n)[:, None]
    elif HOW == "two":
        k = tl.load(x_ptr + n // 2, mask=live, other=0).to(tl.float32)
        s = tl.zeros((R, B), tl.float32)
        q = tl.zeros((R, B), tl.float32)
        for i in range(0, n, B):
            c = i + lanes
            x = tl.load(x_ptr + c, mask=live & (c < n), other=0).to(tl.float32)
            d = (x - k) * (c < n)
            s += d
            q += d * d
        m = (tl.sum(s, 1) / n)[:, None]
        var = (tl.sum(q, 1) / n)[:, None] - m * m
        mean = k + m
    else:
        # one accumulator for each lane, merged at the end by tl.reduce with a tuple
        mean_l = tl.zeros((R, B), tl.float32)
        m2_l = tl.zeros((R, B), tl.float32)
        n_l = tl.zeros((R, B), tl.float32)
        for i in range(0, n, B):
            c = i + lanes
            x = tl.load(x_ptr + c, mask=live & (c < n), other=0).to(tl.float32)
            one = tl.where(live & (c < n), 1.0, 0.0)
            mean_l, m2_l, n_l = combine(mean_l, m2_l, n_l, x, tl.zeros_like(x), one)
        mean, m2, _ = tl.reduce((mean_l, m2_l, n_l), 1, combine)
        mean = mean[:, None]
        var = m2[:, None] / n
    rstd = tl.rsqrt(var + eps)
    for i in range(0, n, B):
        c = i + lanes
        x = tl.load(x_ptr + c, mask=live & (c < n), other=0).to(tl.float32)
        w = tl.load(w_ptr + c, mask=c < n, other=0).to(tl.float32)
        b = tl.load(b_ptr + c, mask=c < n, other=0).to(tl.float32)
        tl.store(y_ptr + c, (x - mean) * rstd * w + b, mask=live & (c < n))


def _go(how, x, weight, bias, eps, rows=1):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    m, n = x.shape
    norm[(triton.cdiv(m, rows),)](
        x, weight, bias, y, x.stride(0), n, m, n, eps, HOW=how, R=rows, B=BLOCK
    )
    return y


def layer_norm_three_pass(x, weight, bias, eps=1e-5):
    return _go("three", x, weight, bias, eps)


def layer_norm_two_pass(x, weight, bias, eps=1e-5):
    return _go("two", x, weight, bias, eps, 2)


def layer_norm_welford(x, weight, bias, eps=1e-5):
    return _go("welford", x, weight, bias, eps)


@triton.jit
def held(x_ptr, w_ptr, b_ptr, y_ptr, sx, sy, m, n, eps, R: tl.constexpr, B: tl.constexpr):
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    c = tl.arange(0, B)[None, :]
    ok = (row < m) & (c < n)
    x = tl.load(x_ptr + row * sx + c, mask=ok, other=0).to(tl.float32)
    w = tl.load(w_ptr + c, mask=c < n, other=0).to(tl.float32)
    b = tl.load(b_ptr + c, mask=c < n, other=0).to(tl.float32)
    mean = tl.sum(x, 1, keep_dims=True) / n
    d = tl.where(ok, x - mean, 0)
    var = tl.sum(d * d, 1, keep_dims=True) / n
    tl.store(y_ptr + row * sy + c, d * tl.rsqrt(var + eps) * w + b, mask=ok)


def layer_norm_tuned(x, weight, bias, eps=1e-5):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    m, n = x.shape
    b = triton.next_power_of_2(n)
    rows = max(1, 1024 // b)
    warps = 4 if b <= 1024 else min(16, b // 256)
    held[(triton.cdiv(m, rows),)](
        x, weight, bias, y, x.stride(0), n, m, n, eps, R=rows, B=b, num_warps=warps
    )
    return y


def breaking_row():
    row = torch.full((4096,), 3e6)
    row[::7] += 1.0
    return row
