"""A small Llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

    config = SIZES["small"]
    logits = TinyLlama(config, stage="rownorm")(tokens)

Between layers the residual stream h is carried together with the last update, which is not added yet. The next norm
adds it: in the stage ``rownorm`` in the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import Stage
from .blocks import (
    Baseline,
    Norm,
    Projections,
    autocast_dtype,
    compute_of,
    heads_first,
    heads_last,
    initialize,
)


@dataclass(frozen=True)
class LlamaConfig:
    """The dimensions of a model. n_tokens: the length of a training sequence; the model takes any length."""

    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    hidden: int
    vocabulary: int
    n_tokens: int
    rotary_base: float = 10000.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.width % (2 * self.n_heads):
            raise ValueError(
                f"LlamaConfig: width must be a multiple of 2 * n_heads, so that every head has an even number of "
                f"columns; got width {self.width}, n_heads {self.n_heads}"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"LlamaConfig: n_heads must be a multiple of n_kv_heads; got {self.n_heads}, {self.n_kv_heads}"
            )

    @property
    def head_width(self) -> int:
        """Columns of one head."""
        return self.width // self.n_heads


SIZES: dict[str, LlamaConfig] = {
    "tiny": LlamaConfig(
        width=64, n_layers=2, n_heads=4, n_kv_heads=2, hidden=192, vocabulary=64, n_tokens=64
    ),
    "small": LlamaConfig(
        width=512, n_layers=8, n_heads=8, n_kv_heads=2, hidden=1408, vocabulary=256, n_tokens=256
    ),
    "medium": LlamaConfig(
        width=1024,
        n_layers=16,
        n_heads=16,
        n_kv_heads=4,
        hidden=2816,
        vocabulary=1024,
        n_tokens=1024,
    ),
}


class TinyLlama(nn.Module):
    """tokens (batch, n_tokens) to logits (batch, n_tokens, vocabulary)."""

    def __init__(self, config: LlamaConfig, stage: Stage = "rownorm") -> None:
        super().__init__()
        self.config, self.stage = config, stage
        compute = compute_of(stage)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config, compute) for _ in range(config.n_layers))
        self.norm = _norm(config, compute)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        initialize(self, n_updates=2 * config.n_layers)

    def forward(self, tokens: Tensor) -> Tensor:
        h: Tensor = self.embedding(tokens)
        update: Tensor | None = None
        cos, sin = rotary_tables(self.config, tokens.shape[-1], h)
        for layer in self.layers:
            h, update = layer(h, update, cos, sin)
        y, _ = self.norm.add(h, update)
        return self.head(y)


class Layer(nn.Module):
    """Attention and SwiGLU, each after a norm."""

    def __init__(self, config: LlamaConfig, compute: Baseline) -> None:
        super().__init__()
        self.attention_norm = _norm(config, compute)
        self.attention = Attention(config, compute)
        self.feed_forward_norm = _norm(config, compute)
        self.feed_forward = FeedForward(config, compute)

    def forward(
        self, h: Tensor, update: Tensor | None, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(stream, update to add to it), before and after this layer; each (batch, n_tokens, width)."""
        y, h = self.attention_norm.add(h, update)
        y, h = self.feed_forward_norm.add(h, self.attention(y, cos, sin))
        return h, self.feed_forward(y)


class Attention(nn.Module):
    """Causal self-attention in which several query heads share a key and a value head."""

    def __init__(self, config: LlamaConfig, compute: Baseline) -> None:
        super().__init__()
        self.compute, self.n_heads, self.n_kv_heads = compute, config.n_heads, config.n_kv_heads
        shared = config.n_kv_heads * config.head_width
        self.project = Projections(config.width, (config.width, shared, shared), compute)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """y: (batch, n_tokens, width); cos, sin: (n_tokens, head_width)."""
        query, key, value = self.project(y)
        query = self.compute.rotate(heads_first(query, self.n_heads), cos, sin)
        key = self.compute.rotate(heads_first(key, self.n_kv_heads), cos, sin)
        value = heads_first(value, self.n_kv_heads)
        attended = self.compute.attend(query, key, value, is_causal=True)
        return self.output(heads_last(attended))


class FeedForward(nn.Module):
    """``output(silu(gate) * up)``."""

    def __init__(self, config: LlamaConfig, compute: Baseline) -> None:
        super().__init__()
        self.compute = compute
        self.gate_and_up = Projections(config.width, (config.hidden, config.hidden), compute)
        self.output = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, y: Tensor) -> Tensor:
        """y: (batch, n_tokens, width)."""
        gate, up = self.gate_and_up(y)
        return self.output(self.compute.swiglu(gate, up))


def rotary_tables(config: LlamaConfig, n_tokens: int, h: Tensor) -> tuple[Tensor, Tensor]:
    """cos and signed sin of every position, (n_tokens, head_width), in the dtype and on the device of attention.

    They are computed in fp32 or fp64 and rounded once, also for a bf16 model. The sign of the first half of sin is
    negative, as the rotation of (first, second) needs it.
    """
    wide = torch.float64 if h.dtype == torch.float64 else torch.float32
    half = config.head_width // 2
    exponents = torch.arange(half, device=h.device, dtype=wide) / half
    positions = torch.arange(n_tokens, device=h.device, dtype=wide)
    angles = positions[:, None] * config.rotary_base**-exponents
    cos, sin = angles.cos(), angles.sin()
    dtype = autocast_dtype(h) or h.dtype
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def _norm(config: LlamaConfig, compute: Baseline) -> Norm:
    return Norm(config.width, compute, center=False, eps=config.eps)
