"""RMSNorm as the Solution of rmsnorm_d4096 calls it: rows in, rows out, with rownorm's Triton kernels.

    python examples/flashinfer_bench/triton_rmsnorm.py

The kernel is ``forward_resident`` in ``src/rownorm/kernels/forward/resident.py``: one program loads a whole row once,
sums its squares in fp32 and stores it once, in 16-byte accesses. The planner chooses warps and tile for the width.
Without a GPU this is PyTorch on the CPU; ``TRITON_INTERPRET=1`` runs the kernel in Triton's interpreter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rownorm.ops.into import norm_into


def run(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """``out = x / sqrt(mean(x^2) + eps) * weight``; x, out: (batch, 4096); weight: (4096,)."""
    norm_into((x, None, weight, None, out, None), (False, eps))


def main() -> None:
    """Compare with PyTorch in fp32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for batch in (1, 8, 32):
        x = torch.randn(batch, 4096, dtype=torch.float16, device=device)
        weight = torch.randn(4096, dtype=torch.float16, device=device)
        out = torch.empty_like(x)
        run(x, weight, 1e-6, out)
        expected = torch.nn.functional.rms_norm(x.float(), (4096,), weight.float(), 1e-6).half()
        error = (out.float() - expected.float()).abs() / (expected.float().abs() + 1e-8)
        print(f"batch {batch}: max relative error {error.max().item():.2g}")


if __name__ == "__main__":
    main()
