"""The operations: public functions, checks, autograd, and their registration as PyTorch operators."""

from .batch_invariance import batch_invariant, set_batch_invariant
from .norms import add_layer_norm, add_rms_norm, layer_norm, rms_norm

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "batch_invariant",
    "layer_norm",
    "rms_norm",
    "set_batch_invariant",
]
