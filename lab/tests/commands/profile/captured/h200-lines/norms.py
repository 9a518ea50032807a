"""Two steps of LayerNorm between profiler.start and profiler.stop, after three that compile."""

import torch

import rownorm

x = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
w = torch.ones(4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
b = torch.zeros(4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def step():
    """Forward and backward of rownorm, forward of torch."""
    y = rownorm.layer_norm(x, w, b)
    y.backward(torch.ones_like(y))
    torch.nn.functional.layer_norm(x, (4096,), w, b)


for _ in range(3):
    step()
torch.cuda.synchronize()
torch.cuda.profiler.start()
for _ in range(2):
    step()
torch.cuda.synchronize()
torch.cuda.profiler.stop()
