"""``rownorm.reference`` compared with the oracle and with plain PyTorch, in fp64."""

import pytest
import torch

from rownorm import reference
from rownorm.program import ACTIVATIONS, Inputs
from support.cases import DTYPES, INPUTS, Case, outputs_and_gradients
from support.criterion import assert_case
from support.oracle import exact, oracle
from support.pairwise import covering
from support.torch_answers import torch_own

CASES = [
    Case(shape=(3, 4, 9), dtype=torch.float64, **one)
    for one in covering(
        5,
        center=(True, False),
        residual_dtype=(None, torch.float64),
        pre_bias=(False, True),
        weight=(True,),
        bias=(False, True),
        activation=(None, *ACTIVATIONS),
        weight_shift=(0.0, 1.0),
        eps=(None, 0.1),
    )
]


def forward(case: Case, given: dict):
    made = reference.forward(*(given[name] for name in INPUTS), case.program)
    return made.y, made.h


def backward(case: Case, tensors: dict) -> reference.Gradients:
    made = reference.forward(*(tensors[name] for name in INPUTS), case.program)
    has_residual = tensors["residual"] is not None
    inputs = Inputs(*(tensors[name] for name in INPUTS))
    given = reference.backward_inputs(tensors["dy"], tensors["dh"], inputs, made)
    wanted = tuple(tensors[name] is not None for name in INPUTS)
    return reference.backward(given, case.program, has_residual, wanted)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.program))
def test_forward_and_its_autograd(case, device):
    tensors = case.tensors(device)
    made = outputs_and_gradients(lambda given: forward(case, given), tensors)
    for name, truth in oracle(case, tensors).items():
        # 64 roundings of fp64: the path of autograd is longer than that of the kernels.
        assert abs(exact(made[name]) - truth).max() <= 64 * 2.0**-53 * (1 + abs(truth).max()), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.program))
def test_backward_is_the_derivative(case, device):
    tensors = case.tensors(device)
    truth = oracle(case, tensors)
    for name, gradient in zip(INPUTS, backward(case, tensors), strict=True):
        assert (gradient is None) == (tensors[name] is None)
        if gradient is not None:
            expected = truth[f"d{name}"]
            assert abs(exact(gradient) - expected).max() <= 64 * 2.0**-53 * (
                1 + abs(expected).max()
            )


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.program))
def test_oracle_is_what_torch_composes(case, device):
    """The oracle itself is compared with ``F.layer_norm``, ``F.rms_norm`` and torch's activations in fp64."""
    tensors = case.tensors(device)
    by_torch = torch_own(case, tensors)
    for name, truth in oracle(case, tensors).items():
        torch.testing.assert_close(
            by_torch[name].cpu(), torch.from_numpy(truth.astype("float64")), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("data", ["normal", "offset", "constant", "constant_huge", "near_eps"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_as_accurate_as_torch(center, dtype, data, device):
    case = Case(center, dtype, (40, 100), data, bias=center)
    tensors = case.tensors(device)
    made = outputs_and_gradients(lambda given: forward(case, given), tensors)
    assert_case(case, tensors, results=made, batches=8)


def test_only_what_is_wanted(device):
    case = Case(True, bias=True, pre_bias=True)
    tensors = case.tensors(device)
    made = reference.forward(*(tensors[name] for name in INPUTS), case.program)
    inputs = Inputs(*(tensors[name] for name in INPUTS))
    given = reference.backward_inputs(tensors["dy"], None, inputs, made)
    for place, name in enumerate(INPUTS):
        if tensors[name] is None:
            continue
        wanted = tuple(i == place for i in range(len(INPUTS)))
        gradients = reference.backward(given, case.program, False, wanted)
        assert tuple(gradient is not None for gradient in gradients) == wanted


def test_statistics(device):
    case = Case(True, torch.float64, (4, 30), pre_bias=True)
    tensors = case.tensors(device)
    h = tensors["x"] + tensors["pre_bias"]
    mu, rstd = reference.moments(tensors["x"], tensors["pre_bias"], None, case.program, case.dtype)
    torch.testing.assert_close(mu, h.mean(-1))
    torch.testing.assert_close(rstd, (h.var(-1, correction=0) + 1e-5).rsqrt())
    mu, _ = reference.moments(tensors["x"], None, None, Case(False).program, case.dtype)
    assert mu is None
