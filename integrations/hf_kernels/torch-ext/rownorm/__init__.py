"""LayerNorm and RMSNorm, forward and backward, as functions, as modules (``nn``) and as layers for ``kernelize``."""

from .library import (
    add_layer_norm,
    add_rms_norm,
    functional,
    layer_norm,
    nn,
    patch,
    rms_norm,
    unpatch,
)
from .library.integrations import hf_kernels as layers

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "functional",
    "layer_norm",
    "layers",
    "nn",
    "patch",
    "rms_norm",
    "unpatch",
]
