"""Two small pre-norm transformers whose norms are torch's, rownorm's, or rownorm's with the residual add.

    llama    RMSNorm, SwiGLU
    gpt2     LayerNorm, GELU

Random weights, no rotary embedding: what counts is the share of time that norms have in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rownorm.nn

from . import Size, SmallModel

Norms = Literal["torch", "rownorm", "rownorm add"]
VOCABULARY = 1024


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.n_heads = size.n_heads
        self.project = nn.Linear(size.width, 3 * size.width, bias=False)
        self.output = nn.Linear(size.width, size.width, bias=False)

    def forward(self, y: Tensor) -> Tensor:
        fused = self.project(y).unflatten(-1, (3, self.n_heads, -1))
        query, key, value = (part.transpose(1, 2) for part in fused.unbind(-3))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).flatten(-2))


class SwiGLU(nn.Module):
    """The feed-forward layer of Llama."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = max(64, size.width * 8 // 3 // 64 * 64)
        self.gate_and_up = nn.Linear(size.width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, size.width, bias=False)

    def forward(self, y: Tensor) -> Tensor:
        gate, up = self.gate_and_up(y).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Model(nn.Module):
    """A stack of attention and feed-forward layers, each after a norm.

    out_dtype: of every norm, where the norms are rownorm's.
    """

    def __init__(
        self, kind: SmallModel, size: Size, norms: Norms, out_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.adds, self.out_dtype = norms == "rownorm add", out_dtype
        self.add_norm: Callable[..., Any] = (
            rownorm.add_rms_norm if kind == "llama" else rownorm.add_layer_norm
        )
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.layers = nn.ModuleList()
        for _ in range(size.n_layers):
            self.layers.append(Attention(size))
            self.layers.append(SwiGLU(size) if kind == "llama" else _gelu_layer(size))
        modules: Any = nn if norms == "torch" else rownorm.nn
        norm = modules.RMSNorm if kind == "llama" else modules.LayerNorm
        options = {} if norms == "torch" else {"out_dtype": out_dtype}
        self.norms = nn.ModuleList(
            norm(size.width, eps=1e-5, **options) for _ in range(len(self.layers) + 1)
        )

    def forward(self, tokens: Tensor, stream_dtype: torch.dtype | None = None) -> Tensor:
        """The hidden states, (batch, tokens, width). stream_dtype: of the residual stream; None: the embedding's."""
        h = self.embedding(tokens)
        h = h if stream_dtype is None else h.to(stream_dtype)
        return self._with_add(h) if self.adds else self._without_add(h)

    def _without_add(self, h: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=False):
            h = h + layer(norm(h))
        return self.norms[-1](h)

    def _with_add(self, h: Tensor) -> Tensor:
        y = self.norms[0](h)
        for norm, layer in zip(self.norms[1:], self.layers, strict=True):
            bias = getattr(norm, "bias", None)
            options = {"eps": norm.eps, "out_dtype": self.out_dtype}
            y, h = self.add_norm(layer(y), h, norm.weight, bias, **options)
        return y


def _gelu_layer(size: Size) -> nn.Module:
    width = size.width
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
