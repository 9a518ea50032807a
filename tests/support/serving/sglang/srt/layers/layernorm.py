"""RMSNorm with the arithmetic of SGLang's forward_native."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    _quant_linear = None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        var_hidden_size: int | None = None,
        cast_x_before_out_mul: bool = False,
        fp32_residual: bool = False,
        has_weight: bool = True,
        weight_dtype=None,
        override_orig_dtype=None,
        x_pad_to_multiple: int = 0,
        force_native: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=weight_dtype))
        self.variance_epsilon = eps
        self.variance_size_override = None if var_hidden_size == hidden_size else var_hidden_size
        self.cast_x_before_out_mul = cast_x_before_out_mul
        self.override_orig_dtype = override_orig_dtype

    def forward_cuda(self, x, residual=None, post_residual_addition=None, quant_linear=None):
        return self.forward_native(x, residual, post_residual_addition)

    def forward_native(self, x, residual=None, post_residual_addition=None, quant_linear=None):
        dtype = self.override_orig_dtype or x.dtype
        h = x.float()
        for term in (residual, post_residual_addition):
            h = h if term is None else h + term.float()
        variance = h[..., : self.variance_size_override].square().mean(-1, keepdim=True)
        y = h * torch.rsqrt(variance + self.variance_epsilon)
        y = self.weight * y.to(dtype) if self.cast_x_before_out_mul else (y * self.weight).to(dtype)
        return y if residual is None else (y, h.to(dtype))
