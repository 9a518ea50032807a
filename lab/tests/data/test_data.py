"""The tensors of a case."""

import pytest
import torch

from rownorm_lab.data.case import DTYPES, OPERATIONS, Case
from rownorm_lab.providers.data import DATA_SETS, output_names, rotation


@pytest.mark.parametrize("operation", OPERATIONS)
def test_forward_has_inputs_and_no_gradients(operation):
    case = Case(operation=operation, rows=3, cols=8, dtype="bf16", pre_bias=True)
    (t,) = rotation(case, 1, "cpu")
    assert t.x.shape == (3, 8)
    assert t.x.dtype == torch.bfloat16
    assert (t.residual is not None) == case.adds
    assert (t.bias is not None) == case.centers
    assert t.pre_bias is not None
    assert t.dy is None
    assert t.dh is None
    assert not any(leaf.requires_grad for leaf in t.leaves)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("direction", ["backward", "both"])
def test_backward_has_gradients_for_every_output(operation, direction):
    case = Case(
        operation=operation,
        direction=direction,
        rows=3,
        cols=8,
        residual_dtype="fp32" if operation.startswith("add_") else None,
    )
    (t,) = rotation(case, 1, "cpu")
    assert all(leaf.requires_grad and leaf.is_leaf for leaf in t.leaves)
    assert len(t.cotangents) == (2 if case.adds else 1)
    if case.adds:
        assert t.residual.dtype == t.dh.dtype == torch.float32
    gradients = [name for name in output_names(case) if name.startswith("d")]
    assert len(gradients) == len(t.leaves)


def test_names_of_outputs():
    case = Case(
        operation="add_layer_norm", direction="both", rows=1, cols=1, pre_bias=True, bias=True
    )
    assert output_names(case) == (
        *("y", "h", "dx", "dresidual"),
        *("dpre_bias", "dweight", "dbias"),
    )
    assert output_names(Case(operation="rms_norm", rows=1, cols=1)) == ("y",)


def test_sets_differ_and_share_their_parameters():
    case = Case(operation="layer_norm", direction="backward", rows=4, cols=16)
    sets = rotation(case, 3, "cpu")
    assert len({t.x.data_ptr() for t in sets}) == 3
    assert not torch.equal(sets[0].x, sets[1].x)
    assert not torch.equal(sets[0].dy, sets[1].dy)
    assert all(t.weight is sets[0].weight and t.bias is sets[0].bias for t in sets)


def test_a_copy_shares_no_memory():
    case = Case(operation="add_layer_norm", direction="both", rows=4, cols=16, pre_bias=True)
    (t,) = rotation(case, 1, "cpu")
    pairs = [pair for pair in zip(t, t.copy(), strict=True) if pair[0] is not None]
    assert len(pairs) == 7
    for mine, copied in pairs:
        assert torch.equal(mine, copied)
        assert mine.data_ptr() != copied.data_ptr()
        assert mine.requires_grad == copied.requires_grad


def test_the_seed_decides():
    case = Case(operation="add_rms_norm", direction="both", rows=4, cols=16)
    first, again, other = (rotation(case, 1, "cpu", seed=seed)[0] for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        if a is not None:
            assert torch.equal(a, b)
            assert not torch.equal(a, c)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_data_is_what_it_says(dtype):
    case = Case(operation="layer_norm", rows=64, cols=512, dtype=dtype)

    def x(data):
        (t,) = rotation(case, 1, "cpu", data=data)
        assert t.x.isfinite().all()
        return t.x.double()

    assert x("normal").std() == pytest.approx(1, rel=0.05)
    offset = x("offset")
    assert (offset.mean(-1) / offset.std(-1)).min() > {"fp16": 200, "bf16": 25, "fp32": 8000}[dtype]
    assert x("near_eps").var() == pytest.approx(case.eps, rel=0.1)
    assert 0.01 < (x("outliers").abs() > 100).double().mean() < 0.1
    assert (x("constant").std(-1) == 0).all()
    assert x("constant").std() > 1


def test_unknown_data():
    with pytest.raises(ValueError, match=r"data must be one of normal, offset.*'strange'"):
        rotation(Case(operation="rms_norm", rows=1, cols=4), 1, "cpu", data="strange")
    assert {"normal", "offset", "near_eps", "outliers", "constant"} == set(DATA_SETS)
