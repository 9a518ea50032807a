"""Bias addition and LayerNorm in one kernel: ``y = layer_norm(x + pre_bias) * weight + bias``.

    python examples/layer_norm.py --help

PyTorch needs two operators, which write ``x + pre_bias`` to memory and read it again. Here it stays in registers.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

import rownorm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def run_once(
    B: int = 512, N: int = 8192, dtype: torch.dtype = torch.float32, eps: float = 1e-6
) -> tuple[float, float]:
    """Normalize B rows of N columns; print and return (max difference from PyTorch, milliseconds)."""
    x = torch.randn(B, N, dtype=dtype, device=DEVICE)
    pre_bias, weight, bias = torch.randn(3, N, dtype=dtype, device=DEVICE)

    def fused() -> torch.Tensor:
        return rownorm.layer_norm(x, weight, bias, eps=eps, pre_bias=pre_bias)

    expected = F.layer_norm(x + pre_bias, (N,), weight, bias, eps)
    difference = (fused().double() - expected.double()).abs().max().item()
    timer = Timer("fused()", globals={"fused": fused})
    milliseconds = timer.blocked_autorange(min_run_time=0.2).median * 1e3

    where = "a CPU: no GPU kernel runs, this is a CPU timing"
    if DEVICE == "cuda":
        where = torch.cuda.get_device_name()
    print(f"{B} x {N} {dtype}, eps {eps:g}, on {where}")
    print(f"max difference from PyTorch  {difference:.3g}")
    print(f"time of one call             {milliseconds:.4f} ms")
    return difference, milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Fused bias + LayerNorm, checked against PyTorch.")
    parser.add_argument("-B", type=int, default=512, help="rows (default: 512)")
    parser.add_argument("-N", type=int, default=8192, help="columns (default: 8192)")
    dtypes = ("float16", "bfloat16", "float32", "float64")
    parser.add_argument("--dtype", choices=dtypes, default="float32", help="(default: float32)")
    parser.add_argument("--eps", type=float, default=1e-6, help="(default: 1e-6)")
    options = parser.parse_args()
    run_once(options.B, options.N, getattr(torch, options.dtype), options.eps)


if __name__ == "__main__":
    main()
