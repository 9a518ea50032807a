"""Drop-in modules: torch's own, with rownorm's forward."""

from __future__ import annotations

import torch
from torch import Tensor

from . import functional


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, same arguments, parameters and ``state_dict``, computed by rownorm."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, same arguments, parameters and ``state_dict``, computed by rownorm."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)
