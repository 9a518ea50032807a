"""A small DiT: a diffusion transformer whose norms are modulated by the noise level of each sample (adaLN-zero).

    config = SIZES["small"]
    logits = TinyDiT(config, stage="rownorm")(images)

Every block has a shift, a scale and a gate for attention, and the same for its feed-forward layer, computed from the
noise level. The gate multiplies the update before it is added to the residual stream. As in ``tiny_llama``, the update
and its gate are carried to the next norm: in the stage ``rownorm``, gate, add, norm, scale and shift are one kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Stage
from .blocks import (
    Baseline,
    Modulation,
    Norm,
    Projections,
    compute_of,
    heads_first,
    heads_last,
    initialize,
)


@dataclass(frozen=True)
class DiTConfig:
    """The dimensions of a model and of its images, which are squares of letters. n_levels: of noise."""

    width: int
    n_layers: int
    n_heads: int
    hidden: int
    n_letters: int
    side: int
    n_levels: int = 16
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.width % self.n_heads:
            raise ValueError(
                f"DiTConfig: width must be a multiple of n_heads; got {self.width}, {self.n_heads}"
            )

    @property
    def n_tokens(self) -> int:
        """The letters of an image."""
        return self.side**2


SIZES: dict[str, DiTConfig] = {
    "tiny": DiTConfig(width=64, n_layers=2, n_heads=4, hidden=256, n_letters=8, side=8),
    "small": DiTConfig(width=384, n_layers=8, n_heads=6, hidden=1536, n_letters=16, side=16),
    "medium": DiTConfig(width=1152, n_layers=12, n_heads=16, hidden=4608, n_letters=32, side=16),
}


class TinyDiT(nn.Module):
    """Noise levels and noisy letters (batch, 1 + n_tokens) to logits of the letters (batch, n_tokens, n_letters)."""

    def __init__(self, config: DiTConfig, stage: Stage = "rownorm") -> None:
        super().__init__()
        self.config, self.stage = config, stage
        compute, width = compute_of(stage), config.width
        self.letters = nn.Embedding(config.n_letters, width)
        self.positions = nn.Embedding(config.n_tokens, width)
        self.levels = nn.Embedding(config.n_levels, width)
        self.blocks = nn.ModuleList(Block(config, compute) for _ in range(config.n_layers))
        self.norm = _norm(config, compute)
        self.modulation = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, config.n_letters, bias=False)
        initialize(self, n_updates=2 * config.n_layers)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.weight)  # a modulation: every block begins as the identity
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        level, letters = images[:, 0], images[:, 1:]
        h: Tensor = self.letters(letters) + self.positions.weight
        condition = F.silu(self.levels(level)).unsqueeze(1)
        update: Tensor | None = None
        gate: Tensor | None = None
        for block in self.blocks:
            h, update, gate = block(h, update, gate, condition)
        shift, scale = self.modulation(condition).chunk(2, dim=-1)
        y, _ = self.norm.add(h, update, Modulation(scale, shift, gate))
        return self.head(y)


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a modulated norm."""

    def __init__(self, config: DiTConfig, compute: Baseline) -> None:
        super().__init__()
        self.modulation = nn.Linear(config.width, 6 * config.width)
        self.attention_norm = _norm(config, compute)
        self.attention = Attention(config, compute)
        self.feed_forward_norm = _norm(config, compute)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.output = nn.Linear(config.hidden, config.width, bias=False)

    def forward(
        self, h: Tensor, update: Tensor | None, gate: Tensor | None, condition: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(stream, update to add to it, its gate), before and after this block. condition: (batch, 1, width)."""
        modulations = self.modulation(condition).chunk(6, dim=-1)
        shift, scale, attention_gate, later_shift, later_scale, later_gate = modulations
        y, h = self.attention_norm.add(h, update, Modulation(scale, shift, gate))
        later = Modulation(later_scale, later_shift, attention_gate)
        y, h = self.feed_forward_norm.add(h, self.attention(y), later)
        return h, self.output(F.gelu(self.up(y), approximate="tanh")), later_gate


class Attention(nn.Module):
    """Self-attention of all letters."""

    def __init__(self, config: DiTConfig, compute: Baseline) -> None:
        super().__init__()
        self.compute, self.n_heads = compute, config.n_heads
        self.project = Projections(config.width, (config.width,) * 3, compute)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, y: Tensor) -> Tensor:
        """y: (batch, n_tokens, width)."""
        query, key, value = (heads_first(part, self.n_heads) for part in self.project(y))
        return self.output(heads_last(self.compute.attend(query, key, value)))


def noise_share(level: Tensor, config: DiTConfig) -> Tensor:
    """The share of letters that are random at this level, from 0 to almost 1, along a quarter of a cosine."""
    return 1 - torch.cos(level / config.n_levels * (math.pi / 2))


def _norm(config: DiTConfig, compute: Baseline) -> Norm:
    return Norm(config.width, compute, center=True, eps=config.eps, weight=False)
