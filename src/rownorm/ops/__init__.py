"""The operations: public functions, checks, autograd, and their registration as PyTorch operators."""

from .norms import add_layer_norm, add_rms_norm, layer_norm, rms_norm

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "rms_norm"]
