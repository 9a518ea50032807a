"""What makes the model a Llama: causality, relative positions, grouped heads."""

import dataclasses

import pytest
import torch

from lab_support.models import LLAMA, inputs, make
from rownorm_lab.models import STAGES
from rownorm_lab.models.blocks import compute_of
from rownorm_lab.models.tiny_llama import SIZES, TinyLlama, rotary_tables

every_stage = pytest.mark.parametrize("stage", STAGES)


@every_stage
def test_logits_depend_on_earlier_tokens_only(stage, without_interpreter):
    model, tokens = make("llama", stage, torch.float64), inputs("llama")
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % LLAMA.vocabulary
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :4], before[:, :4], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(after[:, 4:], before[:, 4:])


@every_stage
def test_rotated_products_depend_on_the_distance_only(stage):
    """The scores of two vectors at positions (0, 2) and (3, 5) are equal; those at (0, 3) differ."""
    cos, sin = rotary_tables(LLAMA, 6, torch.empty(0, dtype=torch.float64))
    query, key = torch.randn(2, LLAMA.head_width, dtype=torch.float64)
    rotate = compute_of(stage).rotate
    queries, keys = (rotate(x.expand(6, -1), cos, sin) for x in (query, key))
    torch.testing.assert_close(queries[0] @ keys[2], queries[3] @ keys[5])
    assert not torch.allclose(queries[0] @ keys[2], queries[0] @ keys[3])
    torch.testing.assert_close(queries[0], query)  # position 0 is not rotated


@every_stage
def test_query_heads_share_key_heads(stage):
    """Query heads 0 and 1 read key head 0, and heads 2 and 3 read key head 1."""
    query = torch.randn(1, 4, 3, 8, dtype=torch.float64)
    key, value = torch.randn(2, 1, 2, 3, 8, dtype=torch.float64)
    attend = compute_of(stage).attend
    shared = attend(query, key, value, is_causal=True)
    for head in range(4):
        one = slice(head // 2, head // 2 + 1)
        alone = attend(query[:, head : head + 1], key[:, one], value[:, one], is_causal=True)
        torch.testing.assert_close(shared[:, head : head + 1], alone)


def test_tables_are_rounded_once():
    """A bf16 model computes its angles in fp32: bf16 cannot tell position 300 from 301."""
    exact = rotary_tables(LLAMA, 400, torch.empty(0, dtype=torch.float64))
    rounded = rotary_tables(LLAMA, 400, torch.empty(0, dtype=torch.bfloat16))
    for mine, other in zip(rounded, exact, strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine.double() - other).abs().max() < 2**-8


def test_sizes():
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in TinyLlama(config).parameters()) for config in SIZES.values()
        ]
    assert list(SIZES) == ["tiny", "small", "medium"]
    assert counts == sorted(counts)
    assert counts[0] < 1e6 < counts[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_kv_heads": 3}, "n_heads must be a multiple of n_kv_heads; got 4, 3"),
        ({"width": 36}, "multiple of 2 \\* n_heads"),
    ],
)
def test_a_config_that_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LLAMA, **changes)
