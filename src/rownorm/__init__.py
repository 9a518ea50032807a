"""LayerNorm and RMSNorm for PyTorch, in Triton: every fused form a model needs, forward and backward."""

from . import functional, nn
from .explain import explain
from .ops import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from .version import __version__ as __version__

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "explain",
    "functional",
    "layer_norm",
    "nn",
    "rms_norm",
]
