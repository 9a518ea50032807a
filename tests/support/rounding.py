"""How a kernel rounds a value that it stores, on a GPU and in Triton's interpreter."""

import numpy as np
import torch

from support.regimes import ON_GPU


def truncates(dtype: torch.dtype) -> bool:
    """Triton's interpreter cuts fp32 off to bf16 where a GPU rounds: a rounding there is a whole
    ulp, not half of one.

    This is the only place where the interpreter is judged differently from a GPU.
    """
    return dtype == torch.bfloat16 and not ON_GPU


def rounded(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``t`` in ``dtype``, as a kernel stores it."""
    if truncates(dtype):
        t = (t.float().view(torch.int32) & -0x10000).view(torch.float32)
    return t.to(dtype)


def one_rounding(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The most that one store to ``dtype`` changes each value by: half an ulp, subnormals
    included."""
    limits = torch.finfo(dtype)
    _, exponent = np.frexp(np.maximum(np.abs(values), limits.tiny))
    ulp = np.ldexp(np.longdouble(limits.eps), exponent - 1)
    return ulp if truncates(dtype) else ulp / 2
