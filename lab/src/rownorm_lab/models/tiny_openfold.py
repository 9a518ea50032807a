"""A small Evoformer, the trunk of AlphaFold 2 and OpenFold: from an alignment to distances between residues.

    config = SIZES["small"]
    logits = TinyOpenFold(config, stage="rownorm")(msa)

An alignment (MSA) has n_sequences sequences of n_residues letters; the first is the one whose distances are wanted.
There are two residual streams, ``msa`` (batch, n_sequences, n_residues, msa_width) and ``pair`` (batch, n_residues,
n_residues, pair_width). Every update begins with a LayerNorm of its stream. The last update is carried beside its
stream until the next norm adds it: in the stage ``rownorm`` in the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Stage
from .blocks import Baseline, Norm, Projections, compute_of, heads_first, heads_last, initialize

N_LETTERS = 21  # 20 amino acids and the gap
UPDATES_OF_A_STREAM = 6  # in one block; the pair stream has the most


@dataclass(frozen=True)
class OpenFoldConfig:
    """The dimensions of a model. n_sequences, n_residues: of a training sample; the model takes any.

    outer_width: columns of each factor of the outer product. max_offset: residues that are farther apart in the
    sequence share one position embedding. n_bins: of the distogram.
    """

    msa_width: int
    pair_width: int
    n_blocks: int
    n_msa_heads: int
    n_pair_heads: int
    outer_width: int
    n_sequences: int
    n_residues: int
    n_bins: int
    max_offset: int = 32
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for stream in ("msa", "pair"):
            width, n_heads = getattr(self, f"{stream}_width"), getattr(self, f"n_{stream}_heads")
            if width % n_heads:
                raise ValueError(
                    f"OpenFoldConfig: {stream}_width must be a multiple of n_{stream}_heads; got {width}, {n_heads}"
                )


SIZES: dict[str, OpenFoldConfig] = {
    "tiny": OpenFoldConfig(
        msa_width=32,
        pair_width=32,
        n_blocks=2,
        n_msa_heads=2,
        n_pair_heads=2,
        outer_width=8,
        n_sequences=8,
        n_residues=16,
        n_bins=8,
    ),
    "small": OpenFoldConfig(
        msa_width=128,
        pair_width=64,
        n_blocks=4,
        n_msa_heads=4,
        n_pair_heads=4,
        outer_width=16,
        n_sequences=32,
        n_residues=64,
        n_bins=16,
    ),
    "medium": OpenFoldConfig(
        msa_width=256,
        pair_width=128,
        n_blocks=8,
        n_msa_heads=8,
        n_pair_heads=4,
        outer_width=32,
        n_sequences=128,
        n_residues=256,
        n_bins=32,
    ),
}


class TinyOpenFold(nn.Module):
    """msa (batch, n_sequences, n_residues), letters, to logits (batch, n_residues, n_residues, n_bins)."""

    def __init__(self, config: OpenFoldConfig, stage: Stage = "rownorm") -> None:
        super().__init__()
        self.config, self.stage = config, stage
        compute = compute_of(stage)
        self.letters = nn.Embedding(N_LETTERS, config.msa_width)
        self.first = nn.Embedding(N_LETTERS, config.pair_width)
        self.second = nn.Embedding(N_LETTERS, config.pair_width)
        self.offsets = nn.Embedding(2 * config.max_offset + 1, config.pair_width)
        self.blocks = nn.ModuleList(Block(config, compute) for _ in range(config.n_blocks))
        self.norm = _norm(config.pair_width, config, compute, activation="relu")
        self.head = nn.Linear(config.pair_width, config.n_bins, bias=False)
        initialize(self, n_updates=UPDATES_OF_A_STREAM * config.n_blocks)

    def forward(self, msa: Tensor) -> Tensor:
        stream: Tensor = self.letters(msa)
        pair = self.pair_embedding(msa[:, 0])
        update: Tensor | None = None
        for block in self.blocks:
            stream, pair, update = block(stream, pair, update)
        y, _ = self.norm.add(pair, update)
        return self.head(y + y.transpose(1, 2))  # distances are symmetric

    def pair_embedding(self, sequence: Tensor) -> Tensor:
        """The first pair stream from the letters and the distance in the sequence. sequence: (batch, n_residues)."""
        positions = torch.arange(sequence.shape[1], device=sequence.device)
        largest = self.config.max_offset
        offsets = (positions[:, None] - positions).clamp(-largest, largest) + largest
        pair: Tensor = self.first(sequence)[:, :, None] + self.second(sequence)[:, None]
        return pair + self.offsets(offsets)


class Block(nn.Module):
    """One Evoformer block. The pair stream biases the attention of the MSA; the MSA updates the pair stream."""

    def __init__(self, config: OpenFoldConfig, compute: Baseline) -> None:
        super().__init__()
        msa, pair = config.msa_width, config.pair_width
        # Without bias: it would add the same number to all scores of a head, and softmax cancels that.
        self.row_bias_norm = _norm(pair, config, compute, bias=False)
        self.row_bias = nn.Linear(pair, config.n_msa_heads, bias=False)
        self.row_norm = _norm(msa, config, compute)
        self.row_attention = GatedAttention(msa, config.n_msa_heads, compute)
        self.column_norm = _norm(msa, config, compute)
        self.column_attention = GatedAttention(msa, config.n_msa_heads, compute)
        self.msa_transition_norm = _norm(msa, config, compute)
        self.msa_transition = Transition(msa)
        self.outer_norm = _norm(msa, config, compute)
        self.outer_product = OuterProductMean(config, compute)
        self.outgoing_norm = _norm(pair, config, compute)
        self.outgoing = TriangleMultiplication("outgoing", config, compute)
        self.incoming_norm = _norm(pair, config, compute)
        self.incoming = TriangleMultiplication("incoming", config, compute)
        self.starting_norm = _norm(pair, config, compute)
        self.starting = TriangleAttention("starting", config, compute)
        self.ending_norm = _norm(pair, config, compute)
        self.ending = TriangleAttention("ending", config, compute)
        self.pair_transition_norm = _norm(pair, config, compute)
        self.pair_transition = Transition(pair)

    def forward(
        self, msa: Tensor, pair: Tensor, update: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(MSA stream, pair stream, update to add to the pair stream), before and after this block."""
        y, pair = self.row_bias_norm.add(pair, update)
        bias = self.row_bias(y).movedim(-1, 1)
        y = self.row_norm(msa)
        y, msa = self.column_norm.add(msa, self.row_attention(y, bias))
        columns = self.column_attention(y.transpose(1, 2)).transpose(1, 2)
        y, msa = self.msa_transition_norm.add(msa, columns)
        y, msa = self.outer_norm.add(msa, self.msa_transition(y))
        y, pair = self.outgoing_norm.add(pair, self.outer_product(y))
        y, pair = self.incoming_norm.add(pair, self.outgoing(y))
        y, pair = self.starting_norm.add(pair, self.incoming(y))
        y, pair = self.ending_norm.add(pair, self.starting(y))
        y, pair = self.pair_transition_norm.add(pair, self.ending(y))
        return msa, pair, self.pair_transition(y)


class GatedAttention(nn.Module):
    """Self-attention over the rows of a grid, with a bias that all rows share; a sigmoid gates the result."""

    def __init__(self, width: int, n_heads: int, compute: Baseline) -> None:
        super().__init__()
        self.compute, self.n_heads = compute, n_heads
        self.project = Projections(width, (width,) * 4, compute)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, y: Tensor, bias: Tensor | None = None) -> Tensor:
        """y: (batch, n_rows, n_tokens, width); bias: (batch, n_heads, n_tokens, n_tokens)."""
        *parts, gate = self.project(y)
        # Kernels of attention need four dimensions: rows become a part of the batch.
        query, key, value = (heads_first(part, self.n_heads).flatten(0, 1) for part in parts)
        if bias is not None:
            bias = bias.contiguous()[:, None].expand(-1, y.shape[1], -1, -1, -1).flatten(0, 1)
        attended = self.compute.attend(query, key, value, bias)
        return self.output(torch.sigmoid(gate) * heads_last(attended).view_as(gate))


class TriangleAttention(nn.Module):
    """Attention among the edges that start, or end, at the same residue; the third edge of the triangle is the bias."""

    def __init__(
        self, node: Literal["starting", "ending"], config: OpenFoldConfig, compute: Baseline
    ) -> None:
        super().__init__()
        self.is_ending = node == "ending"
        self.bias = nn.Linear(config.pair_width, config.n_pair_heads, bias=False)
        self.attention = GatedAttention(config.pair_width, config.n_pair_heads, compute)

    def forward(self, y: Tensor) -> Tensor:
        """y: (batch, n_residues, n_residues, pair_width)."""
        if self.is_ending:
            y = y.transpose(1, 2)
        update: Tensor = self.attention(y, self.bias(y).movedim(-1, 1))
        return update.transpose(1, 2) if self.is_ending else update


class TriangleMultiplication(nn.Module):
    """The update of edge ij from the edges ik and jk (outgoing), or ki and kj (incoming), of all k."""

    def __init__(
        self, edges: Literal["outgoing", "incoming"], config: OpenFoldConfig, compute: Baseline
    ) -> None:
        super().__init__()
        width = config.pair_width
        self.equation = "bikc,bjkc->bijc" if edges == "outgoing" else "bkic,bkjc->bijc"
        self.project = Projections(width, (2 * width, 2 * width, width), compute)
        self.norm = _norm(width, config, compute)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, y: Tensor) -> Tensor:
        """y: (batch, n_residues, n_residues, pair_width)."""
        edges, edge_gates, gate = self.project(y)
        first, second = (torch.sigmoid(edge_gates) * edges).chunk(2, dim=-1)
        product = self.norm(torch.einsum(self.equation, first, second))
        return torch.sigmoid(gate) * self.output(product)


class OuterProductMean(nn.Module):
    """The update of pair ij from the MSA columns i and j: their outer product, averaged over sequences."""

    def __init__(self, config: OpenFoldConfig, compute: Baseline) -> None:
        super().__init__()
        width = config.outer_width
        self.project = Projections(config.msa_width, (width, width), compute)
        self.output = nn.Linear(width**2, config.pair_width, bias=False)

    def forward(self, y: Tensor) -> Tensor:
        """y: (batch, n_sequences, n_residues, msa_width)."""
        first, second = self.project(y)
        product = torch.einsum("bsic,bsjd->bijcd", first / y.shape[1], second)
        return self.output(product.flatten(-2))


class Transition(nn.Module):
    """Two linear layers with ReLU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.output = nn.Linear(4 * width, width, bias=False)

    def forward(self, y: Tensor) -> Tensor:
        """y: (..., width)."""
        return self.output(F.relu(self.hidden(y)))


def _norm(
    width: int,
    config: OpenFoldConfig,
    compute: Baseline,
    *,
    bias: bool = True,
    activation: Literal["relu"] | None = None,
) -> Norm:
    return Norm(width, compute, center=True, eps=config.eps, bias=bias, activation=activation)
