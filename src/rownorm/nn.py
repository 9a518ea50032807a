"""Drop-in modules: subclasses of torch's modules with rownorm's forward."""

from __future__ import annotations

import torch
from torch import Tensor

from .functional import layer_norm, rms_norm

# torch.fx.symbolic_trace records each as one call: their code depends on sizes, which a trace does not have.
torch.fx.wrap("layer_norm")
torch.fx.wrap("rms_norm")


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, same arguments, parameters and ``state_dict``, computed by rownorm."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, same arguments, parameters and ``state_dict``, computed by rownorm."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)
