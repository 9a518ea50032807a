"""Synthetic data that a model can learn: a language, alignments from which distances can be inferred, noisy images.

Every function draws from a generator alone: the same seed gives the same batch on every machine.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from .tiny_dit import DiTConfig, noise_share
from .tiny_llama import LlamaConfig
from .tiny_openfold import N_LETTERS, OpenFoldConfig

# From one token to the next, modulo the vocabulary, with these probabilities.
INCREMENTS = (1, 5, 11)
PROBABILITIES = (0.7, 0.2, 0.1)

GAP = N_LETTERS - 1
GAP_SHARE = 0.05
LETTER_RANGE = 3.0  # projections from -LETTER_RANGE to LETTER_RANGE have a letter each
SMALLEST, LARGEST = 0.5, 4.0  # the edges of the first and of the last bin of distances


def language(config: LlamaConfig, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """n sequences: tokens and the tokens that follow them, both (n, n_tokens).

    The first half of a sequence is a random walk modulo the vocabulary. The second half repeats the first. A model
    that knows single tokens has a loss of ``unigram_entropy``. One that knows the increments comes down to
    ``walk_entropy``, and one that also finds the repetition to about half of that.
    """
    half = config.n_tokens // 2 + 1
    start = torch.randint(config.vocabulary, (n, 1), generator=generator)
    weights = torch.tensor(PROBABILITIES).expand(n, -1)
    choices = torch.multinomial(weights, half, replacement=True, generator=generator)
    walk = (start + torch.tensor(INCREMENTS)[choices].cumsum(1)) % config.vocabulary
    tokens = torch.cat((walk, walk), dim=1)[:, : config.n_tokens + 1]
    return tokens[:, :-1], tokens[:, 1:]


def unigram_entropy(config: LlamaConfig) -> float:
    """The loss of a model that knows how often a token occurs, in nats: all tokens are equally frequent."""
    return math.log(config.vocabulary)


def walk_entropy() -> float:
    """The loss of a model that knows the increments, in nats."""
    return -sum(p * math.log(p) for p in PROBABILITIES)


def alignments(config: OpenFoldConfig, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """n alignments (n, n_sequences, n_residues), and bins of distances (n, n_residues, n_residues).

    Residues are the points of a random walk in space. Each sequence of an alignment looks at them along a random
    direction, and a letter says how far along it a residue is. So the squared difference of the letters of two
    residues, averaged over the sequences, is proportional to their squared distance. Some letters are gaps.
    """
    points = torch.randn(n, config.n_residues, 3, generator=generator).cumsum(1)
    points = points - points.mean(1, keepdim=True)
    points = points / points.square().mean((1, 2), keepdim=True).sqrt()
    directions = torch.randn(n, config.n_sequences, 3, generator=generator)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    along = directions @ points.transpose(1, 2)
    n_amino_acids = N_LETTERS - 1
    letters = ((along / LETTER_RANGE + 1) / 2 * n_amino_acids).long().clamp(0, n_amino_acids - 1)
    is_gap = torch.rand(letters.shape, generator=generator) < GAP_SHARE
    edges = torch.linspace(SMALLEST, LARGEST, config.n_bins - 1)
    distances = torch.linalg.vector_norm(points[:, :, None] - points[:, None], dim=-1)
    return letters.masked_fill(is_gap, GAP), torch.bucketize(distances, edges)


def images(config: DiTConfig, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """n noisy images (n, 1 + n_tokens), each after its level of noise, and their letters without noise (n, n_tokens).

    An image is a wave across a square, in a random direction and with a random phase. Letters are equally wide ranges
    of the phase. A share of them is random, which grows with the level.
    """
    direction = 2 * torch.rand(n, 2, 1, 1, generator=generator) - 1
    phase = torch.rand(n, 1, 1, generator=generator)
    places = torch.arange(config.side) / config.side
    turns = phase + direction[:, 0] * places[:, None] + direction[:, 1] * places
    letters = (turns.remainder(1.0) * config.n_letters).long().clamp(max=config.n_letters - 1)
    letters = letters.flatten(1)
    level = torch.randint(config.n_levels, (n, 1), generator=generator)
    is_noise = torch.rand(letters.shape, generator=generator) < noise_share(level, config)
    noise = torch.randint(config.n_letters, letters.shape, generator=generator)
    return torch.cat((level, torch.where(is_noise, noise, letters)), dim=1), letters


def bin_entropy(bins: Tensor) -> float:
    """The loss of a model that knows how often each bin occurs, in nats."""
    shares = bins.flatten().bincount().double() / bins.numel()
    return float(-(shares[shares > 0] * shares[shares > 0].log()).sum())
