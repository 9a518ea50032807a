"""What the models share: the three stages, and the modules that differ between stages.

    baseline    plain PyTorch, one operation after another
    fused       what good PyTorch does: one matrix product for several projections, ``scaled_dot_product_attention``,
                ``F.rms_norm`` and ``F.layer_norm``
    rownorm     as fused, with rownorm's norms: residual add, norm and activation are one kernel

A stage changes how a module computes, never which parameters it has: the ``state_dict`` of one stage loads in the
others. ``Baseline``, ``Fused`` and ``Rownorm`` are the only places where stages differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rownorm

from . import STAGES

HALVES = (torch.float16, torch.bfloat16)


class Modulation(NamedTuple):
    """Vectors (batch, 1, width) of each sample. A norm's result is ``y * (1 + scale) + shift``; the update that is
    added before it is first multiplied by residual_gate, unless that is None.
    """

    scale: Tensor
    shift: Tensor
    residual_gate: Tensor | None = None


# ---- the stages ----


class Baseline:
    """Plain PyTorch, one operation after another."""

    def norm(self, x: Tensor, norm: Norm, modulation: Modulation | None = None) -> Tensor:
        """x: (..., width). Statistics in fp32 for 16-bit rows."""
        rows = x.float() if x.dtype in HALVES else x
        if norm.center:
            rows = rows - rows.mean(-1, keepdim=True)
        y = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + norm.eps)
        if norm.weight is not None:
            y = y * norm.weight
        if norm.bias is not None:
            y = y + norm.bias
        return _activated(_modulated(y, modulation), norm).to(x.dtype)

    def add_norm(
        self, h: Tensor, update: Tensor, norm: Norm, modulation: Modulation | None = None
    ) -> tuple[Tensor, Tensor]:
        """(norm(h + update), h + update); all tensors (..., width)."""
        if modulation is not None and modulation.residual_gate is not None:
            update = modulation.residual_gate * update
        h = h + update
        return self.norm(h, norm, modulation), h

    def project(self, x: Tensor, weight: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        """x: (..., width); weight: (sum of widths, width). One result (..., n) for each n of widths."""
        return [F.linear(x, part) for part in weight.split(list(widths))]

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding. x: (..., n_tokens, n_columns); cos, sin: (n_tokens, n_columns), sin with its sign."""
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((second, first), dim=-1) * sin

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attention over the tokens of each head, scaled by the root of n_columns.

        query: (batch, n_heads, n_tokens, n_columns); key, value: the same with a number of heads that divides n_heads.
        bias: (batch, n_heads, n_tokens, n_tokens), added to the scores.
        """
        repeats = query.shape[1] // key.shape[1]
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if bias is not None:
            scores = scores + bias
        if is_causal:
            shape = scores.shape[-2:]
            future = torch.ones(shape, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        wide = scores.float() if scores.dtype in HALVES else scores
        return wide.softmax(-1).to(value.dtype) @ value

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """``silu(gate) * up``; both (..., hidden)."""
        return gate * torch.sigmoid(gate) * up


class Fused(Baseline):
    """What good PyTorch does."""

    def norm(self, x: Tensor, norm: Norm, modulation: Modulation | None = None) -> Tensor:
        shape = x.shape[-1:]
        if norm.center:
            y = F.layer_norm(x, shape, norm.weight, norm.bias, norm.eps)
        else:
            y = F.rms_norm(x, shape, norm.weight, norm.eps)
        return _activated(_modulated(y, modulation), norm)

    def project(self, x: Tensor, weight: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        return F.linear(x, weight).split(list(widths), dim=-1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            is_causal=is_causal,
            enable_gqa=query.shape[1] != key.shape[1],
        )

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


class Rownorm(Fused):
    """As ``Fused``, with rownorm's norms: residual add, norm, modulation and activation are one kernel.

    Under autocast a norm stores the 16-bit result that the next linear layer reads.
    """

    def norm(self, x: Tensor, norm: Norm, modulation: Modulation | None = None) -> Tensor:
        function = rownorm.layer_norm if norm.center else rownorm.rms_norm
        return function(x, norm.weight, norm.bias, **_keywords(x, norm, modulation))

    def add_norm(
        self, h: Tensor, update: Tensor, norm: Norm, modulation: Modulation | None = None
    ) -> tuple[Tensor, Tensor]:
        function = rownorm.add_layer_norm if norm.center else rownorm.add_rms_norm
        options = _keywords(update, norm, modulation)
        if modulation is not None:
            options["residual_gate"] = modulation.residual_gate
        return function(update, h, norm.weight, norm.bias, **options)


_COMPUTES: dict[str, Baseline] = {"baseline": Baseline(), "fused": Fused(), "rownorm": Rownorm()}


def compute_of(stage: str) -> Baseline:
    """The functions of a stage."""
    if stage not in _COMPUTES:
        raise ValueError(f"unknown stage {stage!r}; use one of {', '.join(STAGES)}")
    return _COMPUTES[stage]


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype to which autocast casts x for a matrix product; None where it does not."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return None


def _modulated(y: Tensor, modulation: Modulation | None) -> Tensor:
    return y if modulation is None else y * (1 + modulation.scale) + modulation.shift


def _keywords(x: Tensor, norm: Norm, modulation: Modulation | None) -> dict[str, Any]:
    """Of rownorm's functions."""
    options: dict[str, Any] = {"eps": norm.eps, "activation": norm.activation}
    options["out_dtype"] = autocast_dtype(x)
    if modulation is not None:
        options |= {"scale": modulation.scale, "shift": modulation.shift, "scale_shift": 1.0}
    return options


def _activated(y: Tensor, norm: Norm) -> Tensor:
    return F.relu(y) if norm.activation == "relu" else y


# ---- modules ----


class Norm(nn.Module):
    """LayerNorm (center) or RMSNorm of rows (..., width), alone or after a residual add.

    activation: "relu" or None, applied last. weight: whether there is one.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        width: int,
        compute: Baseline,
        *,
        center: bool,
        eps: float,
        weight: bool = True,
        bias: bool = False,
        activation: Literal["relu"] | None = None,
    ) -> None:
        super().__init__()
        self.compute, self.center, self.eps, self.activation = compute, center, eps, activation
        self.width = width
        self.register_parameter("weight", nn.Parameter(torch.ones(width)) if weight else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(width)) if bias else None)

    def forward(self, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        """The normalized rows."""
        return self.compute.norm(x, self, modulation)

    def add(
        self, h: Tensor, update: Tensor | None, modulation: Modulation | None = None
    ) -> tuple[Tensor, Tensor]:
        """(the normalized rows of h + update, h + update). Nothing is added if update is None."""
        if update is None:
            return self(h, modulation), h
        return self.compute.add_norm(h, update, self, modulation)

    def extra_repr(self) -> str:
        kind = "LayerNorm" if self.center else "RMSNorm"
        return f"{kind}, {self.width}, eps={self.eps}, activation={self.activation}"


class Projections(nn.Linear):
    """Several linear layers without bias over the same input, in one weight of shape (sum of widths, width)."""

    def __init__(self, width: int, widths: Sequence[int], compute: Baseline) -> None:
        super().__init__(width, sum(widths), bias=False)
        self.compute, self.widths = compute, tuple(widths)

    def forward(self, x: Tensor) -> Sequence[Tensor]:  # type: ignore[override]
        """x: (..., width). One result (..., n) for each n of widths."""
        return self.compute.project(x, self.weight, self.widths)


def heads_first(x: Tensor, n_heads: int) -> Tensor:
    """(..., n_tokens, n_heads * n_columns) as (..., n_heads, n_tokens, n_columns)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(-2, -3)


def heads_last(x: Tensor) -> Tensor:
    """(..., n_heads, n_tokens, n_columns) as (..., n_tokens, n_heads * n_columns)."""
    return x.transpose(-2, -3).flatten(-2)


def initialize(model: nn.Module, n_updates: int) -> None:
    """Normal weights, scaled by the width of the input; embeddings have variance 1.

    A linear layer named ``output`` ends an update of a residual stream. Its weight is divided by the root of n_updates,
    so that a stream keeps its magnitude.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, nn.Linear):
            scale = n_updates**-0.5 if name.endswith(".output") else 1.0
            nn.init.normal_(module.weight, std=scale * module.in_features**-0.5)
