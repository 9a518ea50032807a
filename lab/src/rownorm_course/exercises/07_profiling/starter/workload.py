"""What is profiled: rms_norm of kernel.py on a large tensor and on a tiny one, in bf16.

    rownorm profile --script workload.py --out my_profile

needs a GPU. Every call is inside a range of the Chrome trace and a scope of Proton with the same name: warm-up, large
or tiny. The first call of a shape compiles the kernel and allocates y, so it has a name of its own.
"""

import torch
import triton.profiler
from kernel import rms_norm

SHAPES = {"large": (16384, 4096), "tiny": (8, 256)}  # rows, columns; y and x of large exceed L2
CALLS = {"large": 3, "tiny": 10}


def call(name, x, weight):
    """One call, named in both profilers."""
    with torch.profiler.record_function(name), triton.profiler.scope(name):
        rms_norm(x, weight)


def main():
    """The calls of a shape follow each other without waiting for the GPU, as in a model."""
    for name, (n_rows, n_cols) in SHAPES.items():
        x = torch.randn(n_rows, n_cols, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(n_cols, device="cuda", dtype=torch.bfloat16)
        call("warm-up", x, weight)
        torch.cuda.synchronize()
        for _ in range(CALLS[name]):
            call(name, x, weight)
        torch.cuda.synchronize()


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise RuntimeError(
            "workload.py needs a GPU. Without one, read the profile in the folder profile."
        )
    main()
