"""Backward by a learner: tiles of rows, contiguous spans of rows, a tree of partial sums."""

import torch
from rownorm_course.interpreter import DEVICE
import triton
import triton.language as tl


@triton.jit
def rows_of(rstd, weight, x, dy, dx, table, m, n, per, R: tl.constexpr, B: tl.constexpr):
    p = tl.program_id(0)
    c = tl.arange(0, B)
    w = tl.load(weight + c, mask=c < n, other=0).to(tl.float32)
    acc = tl.zeros((B,), tl.float32)
    for i in range(0, per, R):
        r = p.to(tl.int64) * per + i + tl.arange(0, R)
        live = r < tl.minimum(m, (p + 1) * per)
        ok = live[:, None] & (c < n)[None, :]
        place = r[:, None] * n + c[None, :]
        xv = tl.load(x + place, mask=ok, other=0).to(tl.float32)
        gv = tl.load(dy + place, mask=ok, other=0).to(tl.float32)
        s = tl.load(rstd + r, mask=live, other=0)[:, None]
        h = xv * s
        g = gv * w[None, :]
        inner = tl.sum(g * h, 1, keep_dims=True) / n
        tl.store(dx + place, s * (g - h * inner), mask=ok)
        acc += tl.sum(gv * h, 0)
    tl.store(table + p * n + c, acc, mask=c < n)


@triton.jit
def add_up(table, dweight, programs, n, P: tl.constexpr, B: tl.constexpr):
    c = tl.program_id(0) * B + tl.arange(0, B)[None, :]
    p = tl.arange(0, P)[:, None]
    t = tl.load(table + p * n + c, mask=(p < programs) & (c < n), other=0)
    tl.store(dweight + c, tl.sum(t, 0, keep_dims=True), mask=c < n)


def rms_norm_backward(dy, x, weight, rstd):
    m, n = x.shape
    programs = min(32, triton.cdiv(m, 4))
    per = triton.cdiv(triton.cdiv(m, programs), 4) * 4
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    table = torch.empty(programs, n, device=x.device, dtype=torch.float32)
    rows_of[(programs,)](
        rstd, weight, x, dy, dx, table, m, n, per, R=4, B=triton.next_power_of_2(n)
    )
    add_up[(triton.cdiv(n, 64),)](table, dweight, programs, n, P=32, B=64)
    return dx, dweight
