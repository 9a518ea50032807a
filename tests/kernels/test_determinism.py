"""The same bits every time, for any set of requested gradients and any other rows in the batch."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from rownorm.program import COLUMNS, ROWS_OF_H
from support.cases import DTYPES, Case, call, ours, outputs_and_gradients
from support.criterion import assert_same_bits
from support.regimes import REGIMES, forced
from support.turns import pairs_in_turns

EVERY_REGIME = pytest.mark.parametrize("regime", REGIMES)
NORMS = pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
ROWS = ("x", "residual", "dy", "dh")
INPUTS = (*ROWS_OF_H, *COLUMNS)  # test_modulation.py and test_gate.py have the others
SUBSETS = [s for n in range(1, 6) for s in itertools.combinations(INPUTS, n)]


def assert_all_same(results: dict, again: dict) -> None:
    for name in again:
        assert_same_bits(results[name], again[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_is_poisoned(dtype, device):
    """Every other test relies on it: unwritten memory is NaN."""
    empty = torch.empty(3, 5, dtype=dtype, device=device)
    assert empty.isnan().all()
    assert torch.empty_like(empty, memory_format=torch.contiguous_format).isnan().all()
    assert empty.new_empty(7).isnan().all()


@EVERY_REGIME
def test_repetition_gives_the_same_bits(regime, device):
    case = Case(True, shape=(5, 70), bias=True, pre_bias=True, residual_dtype=torch.float32)
    tensors = case.tensors(device)
    with forced(regime, n_programs=3):
        assert_all_same(ours(case, tensors), ours(case, tensors))


@pytest.mark.parametrize(
    ("wanted", "residual_dtype"), pairs_in_turns(SUBSETS, (torch.float32, torch.bfloat16))
)
def test_only_requested_gradients_are_computed(wanted, residual_dtype, device):
    """Every combination of inputs that require grad gets the same bits, and no other gradient."""
    case = Case(True, shape=(3, 20), bias=True, pre_bias=True, residual_dtype=residual_dtype)
    tensors = case.tensors(device)
    every = ours(case, tensors)
    for name in INPUTS:
        tensors[name].requires_grad_(name in wanted)
    y, h = call(case, tensors)
    assert h.requires_grad == (not {"x", "residual", "pre_bias"}.isdisjoint(wanted))
    used = [(y, tensors["dy"]), (h, tensors["dh"])][: 1 + h.requires_grad]
    torch.autograd.backward(*zip(*used, strict=True))
    for name in INPUTS:
        assert_same_bits(tensors[name].grad, every[f"d{name}"] if name in wanted else None)


@pytest.mark.parametrize("wanted", [*INPUTS, None])
@EVERY_REGIME
def test_one_gradient_in_every_regime(regime, wanted, device):
    """One gradient is requested, or none. Only the gradient of the residual has a residual."""
    residual_dtype = torch.float32 if wanted == "residual" else None
    case = Case(False, shape=(3, 40), bias=True, pre_bias=True, residual_dtype=residual_dtype)
    tensors = case.tensors(device)
    with forced(regime):
        every = ours(case, tensors)
        if wanted is None:
            y, _ = call(case, tensors)
            assert not y.requires_grad
            assert_same_bits(y, every["y"])
        else:
            one = outputs_and_gradients(lambda inputs: call(case, inputs), tensors, (wanted,))
            assert f"d{wanted}" in one
            assert_all_same(every, one)


@pytest.mark.parametrize("used", ["y", "h"])
def test_gradient_through_one_output(used, device):
    """Only one of the outputs receives a gradient."""
    case = Case(True, shape=(3, 20), bias=True, residual_dtype=torch.float32)
    tensors = case.tensors(device)
    unused, cotangent = ("dh", "dy") if used == "y" else ("dy", "dh")
    full = ours(case, tensors | {unused: torch.zeros_like(tensors[unused])})
    leaf = tensors["x"].clone().requires_grad_()
    y, h = call(case, tensors | {"x": leaf})
    (y if used == "y" else h).backward(tensors[cotangent])
    torch.testing.assert_close(leaf.grad, full["dx"], rtol=0, atol=0)


@NORMS
@EVERY_REGIME
def test_rows_do_not_depend_on_the_batch(regime, center, device):
    case = Case(center, shape=(6, 70), bias=center, residual_dtype=torch.float32)
    tensors = case.tensors(device)
    with forced(regime):
        together = ours(case, tensors)
        for rows in (slice(0, 1), slice(5, 6), slice(1, 4)):
            part = {n: t[rows] if n in ROWS and t is not None else t for n, t in tensors.items()}
            alone = ours(case, part)
            for name in ("y", "h", "dx", "dresidual"):
                assert_same_bits(alone[name], together[name][rows])


@pytest.mark.parametrize("n_cols", [5, 64, 130])
def test_rows_do_not_depend_on_the_batch_by_default(n_cols, device):
    """Without a forced plan: its compiled settings do not depend on the number of rows."""
    case = Case(True, shape=(40, n_cols), bias=True)
    tensors = case.tensors(device)
    together = ours(case, tensors)
    last = {n: t[39:] if n in ROWS and t is not None else t for n, t in tensors.items()}
    alone = ours(case, last)
    for name in ("y", "dx"):
        assert_same_bits(alone[name], together[name][39:])


@pytest.mark.parametrize(("value", "place"), [(math.inf, 0), (-math.inf, 71), (math.nan, 37)])
@NORMS
@EVERY_REGIME
def test_non_finite_values_stay_in_their_row(regime, center, value, place, device):
    """Other rows keep their bits. The row itself is what PyTorch computes."""
    case = Case(center, shape=(3, 72), bias=center)
    tensors = case.tensors(device)
    with forced(regime):
        clean = ours(case, tensors)
        tensors["x"][1, place] = value
        results = ours(case, tensors)
    for name in ("y", "dx"):
        for row in (0, 2):
            assert_same_bits(results[name][row], clean[name][row])
    weight, bias, eps = tensors["weight"], tensors["bias"], case.program.eps

    def by_torch(inputs):
        if center:
            return F.layer_norm(inputs["x"], (72,), weight, bias, eps), None
        return F.rms_norm(inputs["x"], (72,), weight, eps), None

    expected = outputs_and_gradients(by_torch, tensors, ("x",))
    for name in ("y", "dx"):
        torch.testing.assert_close(results[name][1], expected[name][1], equal_nan=True, msg=name)
