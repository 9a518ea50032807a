"""A norm for Megatron-Core's layer specs, LayerNorm or RMSNorm as its configuration says:

spec = get_gpt_layer_local_spec(normalization="RMSNorm")
spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = rownorm.integrations.megatron.Norm
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from ..ops import layer_norm, rms_norm

NORMS = {"LayerNorm": layer_norm, "RMSNorm": rms_norm}


class Norm(nn.Module):
    """``config.normalization`` over the last dimension, with the arguments that Megatron-Core passes to every norm.

    With ``config.layernorm_zero_centered_gamma`` the factor is ``weight + 1``. The parameters have the tag
    ``sequence_parallel`` of the configuration, by which Megatron-Core sums their gradients. As in its own norms, the
    last three arguments are those of other implementations, and the configuration decides.
    """

    def __init__(
        self,
        config: TransformerConfig,
        hidden_size: int | Sequence[int],
        eps: float = 1e-5,
        persist_layer_norm: bool = False,
        zero_centered_gamma: bool = False,
        normalization: str = "LayerNorm",
    ) -> None:
        super().__init__()
        if config.normalization not in NORMS:
            raise ValueError(
                "rownorm.integrations.megatron.Norm: config.normalization must be one of "
                f"{', '.join(NORMS)}; got {config.normalization!r}. Use Megatron-Core's own norm for it."
            )
        (width,) = (hidden_size,) if isinstance(hidden_size, int) else hidden_size
        self.config = config
        self.eps = eps
        self.weight_shift = 1.0 if config.layernorm_zero_centered_gamma else 0.0
        self.weight = nn.Parameter(torch.full((width,), 1.0 - self.weight_shift))
        self.bias: nn.Parameter | None = None
        if config.normalization == "LayerNorm":
            self.bias = nn.Parameter(torch.zeros(width))
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        norm = NORMS[self.config.normalization]
        return norm(x, self.weight, self.bias, eps=self.eps, weight_shift=self.weight_shift)
