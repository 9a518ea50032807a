"""How a kernel rounds a value that it stores, on a GPU and in Triton's interpreter."""

import numpy as np
import torch

from support.regimes import ON_GPU


def truncates(dtype: torch.dtype) -> bool:
    """Whether a store to ``dtype`` truncates: Triton's interpreter does so for bf16, where a GPU rounds to nearest.

    The error of a store is then a whole ulp, not half of one. Only this differs between the interpreter and a GPU.
    """
    return dtype == torch.bfloat16 and not ON_GPU


def rounded(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``t`` in ``dtype``, as a kernel stores it."""
    if truncates(dtype):
        t = (t.float().view(torch.int32) & -0x10000).view(torch.float32)
    return t.to(dtype)


def one_rounding(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The largest error of one store to ``dtype``, by value: half an ulp, also for subnormals."""
    limits = torch.finfo(dtype)
    _, exponent = np.frexp(np.maximum(np.abs(values), limits.tiny))
    ulp = np.ldexp(np.longdouble(limits.eps), exponent - 1)
    return ulp if truncates(dtype) else ulp / 2
