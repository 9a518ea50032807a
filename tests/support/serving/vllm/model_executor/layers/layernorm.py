"""RMSNorm with the arithmetic of vLLM's operators in PyTorch."""

import torch
from torch import nn
from vllm.model_executor.custom_op import CustomOp


@CustomOp.register("rms_norm")
class RMSNorm(CustomOp):
    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        var_hidden_size: int | None = None,
        has_weight: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.variance_epsilon = eps
        self.hidden_size = hidden_size
        self.variance_size_override = None if var_hidden_size == hidden_size else var_hidden_size
        self.has_weight = has_weight
        self.weight = torch.ones(hidden_size, dtype=dtype or torch.get_default_dtype())
        if has_weight:
            self.weight = nn.Parameter(self.weight)

    def forward_native(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        h = x.float() if residual is None else x.float() + residual.float()
        variance = h[..., : self.variance_size_override].square().mean(-1, keepdim=True)
        y = h * torch.rsqrt(variance + self.variance_epsilon)
        if self.has_weight:
            y = y.to(self.weight.dtype) * self.weight
        y = y.to(x.dtype)
        return y if residual is None else (y, h.to(x.dtype))

    def forward_cuda(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return self.forward_native(x, residual)
