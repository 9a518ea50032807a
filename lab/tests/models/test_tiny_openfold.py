"""What makes the model an Evoformer: symmetries of the alignment and of the distogram, triangles, pair bias."""

import dataclasses

import pytest
import torch

from lab_support.models import OPENFOLD, inputs, make
from rownorm_lab.models import STAGES
from rownorm_lab.models.blocks import compute_of
from rownorm_lab.models.tiny_openfold import (
    SIZES,
    GatedAttention,
    OuterProductMean,
    TinyOpenFold,
    TriangleAttention,
    TriangleMultiplication,
)

every_stage = pytest.mark.parametrize("stage", STAGES)
N = OPENFOLD.n_residues


def pair(*shape):
    return torch.randn(*(shape or (1, N, N, OPENFOLD.pair_width)), dtype=torch.float64)


@every_stage
def test_symmetries(stage, without_interpreter):
    model, msa = make("openfold", stage, torch.float64), inputs("openfold")
    logits = model(msa)
    assert logits.shape == (2, N, N, OPENFOLD.n_bins)
    torch.testing.assert_close(logits, logits.transpose(1, 2))
    # The order of the sequences after the first has no meaning; which one is the first has.
    torch.testing.assert_close(model(msa[:, [0, 2, 1]]), logits)
    assert not torch.allclose(model(msa[:, [1, 0, 2]]), logits)


@every_stage
@pytest.mark.parametrize("edges", ("outgoing", "incoming"))
def test_triangle_multiplication(edges, stage, without_interpreter):
    """Edge ij reads rows i and j of the pair stream (outgoing), or its columns i and j (incoming)."""
    module = TriangleMultiplication(edges, OPENFOLD, compute_of(stage)).double()
    y = pair()
    changed = y.clone()
    where = (slice(None), 4) if edges == "outgoing" else (slice(None), slice(None), 4)
    changed[where] += torch.randn_like(changed[where])
    before, after = module(y), module(changed)
    torch.testing.assert_close(after[:, :4, :4], before[:, :4, :4], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(after[:, :4, 4], before[:, :4, 4])
    assert not torch.allclose(after[:, 4, :4], before[:, 4, :4])


@every_stage
def test_the_ending_node_is_the_starting_node_of_the_transpose(stage):
    starting, ending = (
        TriangleAttention(node, OPENFOLD, compute_of(stage)).double()
        for node in ("starting", "ending")
    )
    ending.load_state_dict(starting.state_dict())
    y = pair()
    torch.testing.assert_close(ending(y.transpose(1, 2)).transpose(1, 2), starting(y))
    assert not torch.allclose(ending(y), starting(y))


@every_stage
def test_attention_reads_one_row_and_the_bias(stage):
    attention = GatedAttention(8, 2, compute_of(stage)).double()
    y, bias = pair(2, 3, N, 8), pair(2, 2, N, N)
    result = attention(y, bias)
    alone = attention(y[1:, 2:], bias[1:])
    torch.testing.assert_close(result[1:, 2:], alone)
    # A large score makes every token read token 3 alone.
    bias[..., 3] = 1000.0
    *_, value, gate = attention.project(y)
    expected = attention.output(torch.sigmoid(gate) * value[:, :, 3:4])
    torch.testing.assert_close(attention(y, bias), expected)


@every_stage
def test_outer_product_mean(stage):
    module = OuterProductMean(OPENFOLD, compute_of(stage)).double()
    y = pair(1, 3, N, OPENFOLD.msa_width)
    first, second = module.project(y)
    products = [torch.outer(first[0, s, 1], second[0, s, 2]).flatten() for s in range(3)]
    torch.testing.assert_close(module(y)[0, 1, 2], module.output(sum(products) / 3))


def test_sizes():
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in TinyOpenFold(config).parameters()) for config in SIZES.values()
        ]
    assert list(SIZES) == ["tiny", "small", "medium"]
    assert counts == sorted(counts)
    assert counts[0] < 1e6 < counts[1]


@pytest.mark.parametrize("changes", ({"n_msa_heads": 3}, {"n_pair_heads": 3}))
def test_a_config_that_cannot_be(changes):
    with pytest.raises(
        ValueError, match=r"must be a multiple of n_(msa|pair)_heads; got (16|8), 3"
    ):
        dataclasses.replace(OPENFOLD, **changes)
