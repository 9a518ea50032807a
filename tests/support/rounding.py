"""The error of a store."""

import numpy as np
import torch


def one_rounding(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The largest error of one store to ``dtype``, by value: half an ulp, also for subnormals."""
    limits = torch.finfo(dtype)
    _, exponent = np.frexp(np.maximum(np.abs(values), limits.tiny))
    return np.ldexp(np.longdouble(limits.eps), exponent - 2)
