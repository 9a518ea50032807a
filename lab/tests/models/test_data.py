"""The synthetic data: fixed by its seed, and learnable for the reason that its docstring gives."""

import math

import pytest
import torch

from rownorm_lab.models import tiny_dit, tiny_llama, tiny_openfold
from rownorm_lab.models.data import (
    GAP,
    INCREMENTS,
    PROBABILITIES,
    alignments,
    bin_entropy,
    images,
    language,
    unigram_entropy,
    walk_entropy,
)
from rownorm_lab.models.tasks import TASKS

LLAMA, OPENFOLD = tiny_llama.SIZES["tiny"], tiny_openfold.SIZES["tiny"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", list(TASKS))
def test_a_batch_depends_on_seed_and_step_alone(name):
    def batch(seed, step):
        return TASKS[name].batch("tiny", 2, seed, step)

    first = batch(3, 5)
    torch.manual_seed(99)
    for mine, again in zip(first, batch(3, 5), strict=True):
        assert mine.equal(again)
    for other in ((3, 6), (4, 5), (5, 3)):
        assert not first[0].equal(batch(*other)[0])


def test_language():
    tokens, following = language(LLAMA, 500, generator())
    assert tokens.shape == following.shape == (500, LLAMA.n_tokens)
    assert tokens[:, 1:].equal(following[:, :-1])
    half = LLAMA.n_tokens // 2 + 1
    assert tokens[:, half:].equal(tokens[:, : LLAMA.n_tokens - half])
    # The increments occur as often as they should: 500 * 32 draws have a standard deviation below 0.004.
    increments = (following - tokens)[:, : half - 1] % LLAMA.vocabulary
    shares = [(increments == one).double().mean().item() for one in INCREMENTS]
    assert shares == pytest.approx(PROBABILITIES, abs=0.02)


def test_entropies_of_the_language():
    tokens, _ = language(LLAMA, 2000, generator())
    assert bin_entropy(tokens) == pytest.approx(unigram_entropy(LLAMA), rel=0.01)
    assert walk_entropy() == pytest.approx(0.8018, abs=1e-4)
    assert walk_entropy() < unigram_entropy(LLAMA) / 5


def test_distances_can_be_inferred_from_alignments():
    """The difference of letters, averaged over sequences without a gap, follows the bins of distances."""
    msa, bins = alignments(OPENFOLD, 50, generator())
    assert msa.shape == (50, OPENFOLD.n_sequences, OPENFOLD.n_residues)
    assert bins.shape == (50, OPENFOLD.n_residues, OPENFOLD.n_residues)
    assert bins.equal(bins.transpose(1, 2))
    assert bins.unique().tolist() == list(range(OPENFOLD.n_bins))
    first, second = msa[:, :, :, None], msa[:, :, None]
    known = (first != GAP) & (second != GAP)
    squares = ((first - second) ** 2 * known).sum(1) / known.sum(1).clamp(min=1)
    both = torch.stack((squares.sqrt().flatten(), bins.flatten().double()))
    assert torch.corrcoef(both)[0, 1] > 0.85


def test_images_and_their_noise():
    """Letters are equally frequent. Level 0 has no noise, and the last has hardly anything else."""
    config = tiny_dit.SIZES["tiny"]
    noisy, letters = images(config, 400, generator())
    assert noisy.shape == (400, 1 + config.n_tokens)
    assert letters.shape == (400, config.n_tokens)
    assert bin_entropy(letters) == pytest.approx(math.log(config.n_letters), rel=0.01)
    level, given = noisy[:, 0], noisy[:, 1:]
    assert level.unique().tolist() == list(range(config.n_levels))
    changed = (given != letters).double().mean(1)
    assert not changed[level == 0].any()
    share = tiny_dit.noise_share(torch.tensor(config.n_levels - 1), config).item()
    assert share > 0.9
    expected = share * (1 - 1 / config.n_letters)
    assert changed[level == config.n_levels - 1].mean().item() == pytest.approx(expected, abs=0.05)


def test_bin_entropy():
    assert bin_entropy(torch.tensor([[0, 0], [3, 3]])) == pytest.approx(math.log(2))
