"""Activations and their derivatives in the kernels: errors in ulp of the stored dtype, and special values."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from rownorm.kernels.activations import activate, activation_gradient
from rownorm.program import ACTIVATIONS
from support.torch_answers import torch_activation

SMOOTH = ("silu", "gelu", "gelu_tanh")
EVERY_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)
SHORT, SHORTEST, PRECISE = FORMS = ("short", "shortest", "precise")


@triton.jit
def _evaluate(
    z_ptr,
    y_ptr,
    slope_ptr,
    ACTIVATION: tl.constexpr,
    PRECISE: tl.constexpr,
    LATENCY_HIDDEN: tl.constexpr,
    N: tl.constexpr,
):
    lanes = tl.program_id(0) * N + tl.arange(0, N)
    z = tl.load(z_ptr + lanes)
    tl.store(y_ptr + lanes, activate(z, ACTIVATION, PRECISE))
    one = tl.full(z.shape, 1.0, z.dtype)
    tl.store(slope_ptr + lanes, activation_gradient(one, z, ACTIVATION, PRECISE, LATENCY_HIDDEN))


def evaluated(z: torch.Tensor, activation: str, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(activation(z), its derivative) in the dtype of z, before the rounding of a store."""
    precise, latency_hidden = form == PRECISE, form == SHORTEST
    block = 1 << 14
    padded = torch.zeros(-(-len(z) // block) * block, dtype=z.dtype, device=z.device)
    padded[: len(z)] = z
    y, slope = torch.empty_like(padded), torch.empty_like(padded)
    _evaluate[(len(padded) // block,)](padded, y, slope, activation, precise, latency_hidden, block)
    return y[: len(z)].cpu(), slope[: len(z)].cpu()


def exactly(z: torch.Tensor, activation: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(activation(z), its derivative, activation(z) / z) in fp64, accurate for large negative z too."""
    z = z.double().cpu().numpy()
    if activation == "gelu":
        share = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
        return z * share, share + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi), share
    factor, cubic = (math.sqrt(8 / math.pi), 0.044715) if activation == "gelu_tanh" else (1.0, 0.0)
    u = factor * (z + cubic * z**3)
    share, rest = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(u))
    return z * share, share + z * share * rest * factor * (1 + 3 * cubic * z * z), share


def ulps(made: torch.Tensor, truth: np.ndarray, dtype: torch.dtype, beside=0.0) -> float:
    """The largest error, in ulp of ``dtype`` at the true value, or at ``beside`` if that is larger."""
    limits = torch.finfo(dtype)
    size = np.maximum(np.abs(truth), np.maximum(beside, limits.tiny))
    error = np.abs(made.double().numpy() - truth)
    return float((error / np.ldexp(limits.eps, np.frexp(size)[1] - 1)).max())


def numbers(device: str) -> torch.Tensor:
    """Many fp32 numbers of both signs: evenly spaced up to 20, and logarithmically down to the smallest."""
    even = torch.linspace(-20, 20, 100_001)
    small = torch.logspace(-37, 0, 10_000, dtype=torch.float64).float()
    return torch.cat([even, small, -small]).to(device)


@pytest.mark.parametrize(
    ("activation", "dtype", "most"),
    [
        ("silu", torch.float16, 0.01),
        ("silu", torch.bfloat16, 0.001),
        ("gelu", torch.float16, 0.2),
        ("gelu", torch.bfloat16, 0.025),
        ("gelu_tanh", torch.float16, 0.02),
        ("gelu_tanh", torch.bfloat16, 0.002),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [SHORT, SHORTEST])
def test_short_forms_are_accurate_enough_for_16_bits(activation, dtype, most, form, device):
    """A store adds half an ulp. A slope is a sum with ``share`` as one term, so its error is relative to that."""
    z = numbers(device)
    y, slope = evaluated(z, activation, form)
    true_y, true_slope, share = exactly(z, activation)
    # Below -4.5 PyTorch's gelu in fp32, computed from 1 + erf, has no correct digit.
    assert ulps(y, true_y, dtype, beside=1e-5) <= most
    assert ulps(slope, true_slope, dtype, beside=np.maximum(share, 1e-5)) <= most


@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.parametrize("form", [SHORT, SHORTEST])
def test_short_forms_stay_within_the_budget_of_roundings(activation, form, device):
    """The lab allows 16 fp32 roundings for the formulas."""
    z = torch.linspace(-12, 12, 1 << 15, device=device)
    y, slope = evaluated(z, activation, form)
    truth, true_slope, _ = exactly(z, activation)
    size = np.abs(z.cpu().double().numpy())
    assert (np.abs(y.double().numpy() - truth) <= 16 * 2.0**-24 * size).all()
    assert (np.abs(slope.double().numpy() - true_slope) <= 16 * 2.0**-24 * (1 + size)).all()


@pytest.mark.parametrize("activation", SMOOTH)
def test_precise_forms_are_accurate_enough_for_fp32(activation, device):
    z = numbers(device)
    y, slope = evaluated(z, activation, PRECISE)
    true_y, true_slope, _ = exactly(z, activation)
    assert ulps(y, true_y, torch.float32, beside=0.25) <= 6
    assert ulps(slope, true_slope, torch.float32, beside=0.25) <= 6


@pytest.mark.parametrize(
    ("activation", "form"),
    [*((activation, PRECISE) for activation in SMOOTH), ("gelu", SHORT), ("gelu", SHORTEST)],
)
def test_fp64_is_accurate_to_8_ulp(activation, form, device):
    """The short forms of gelu are for fp32. fp64 takes the precise form, also where 16 bits are stored."""
    z = numbers(device).double()
    y, slope = evaluated(z, activation, form)
    true_y, true_slope, _ = exactly(z, activation)
    assert ulps(y, true_y, torch.float64, beside=0.25) <= 8
    assert ulps(slope, true_slope, torch.float64, beside=0.25) <= 8


EDGES = [
    math.inf,
    math.nan,
    3e38,
    1e20,
    1e10,
    1e5,
    300.0,
    100.0,
    89.0,
    30.0,
    14.0,
    1e-30,
    1e-40,
    0.0,
]


@pytest.mark.parametrize("form", FORMS)
@EVERY_ACTIVATION
def test_special_values_are_as_in_torch(activation, form, device):
    """Infinities, NaN, both zeros, subnormal and large numbers, and the sign of zeros of ``y``.

    PyTorch computes in fp64, because its gelu of inf in fp32 on a CPU is NaN. Where z^2 overflows, the slope of
    gelu_tanh is NaN in both. PyTorch's gelu of -inf is NaN; the short form gives the limit, 0. In PyTorch it depends on
    the processor whether relu of -0 is -0; here it always is.
    """
    z = torch.tensor([*EDGES, *(-value for value in EDGES)])
    y, slope = evaluated(z.to(device), activation, form)
    wide = z.double().requires_grad_()
    torch_y = torch_activation(activation, wide)
    (torch_slope,) = torch.autograd.grad(torch_y.sum(), wide)
    if activation == "gelu" and form != PRECISE:
        torch_y = torch.where(z == -math.inf, 0.0, torch_y)
    close = {"rtol": 1e-5 if form == PRECISE else 2**-13, "atol": 1e-30, "equal_nan": True}
    torch.testing.assert_close(y, torch_y.detach().float(), **close)
    squares = (z.abs() < 1e19) | ~z.isfinite()
    torch.testing.assert_close(slope[squares], torch_slope[squares].float(), **close)
    zeros = z if activation == "relu" else torch_y
    assert torch.equal(y[z == 0].signbit(), zeros[z == 0].signbit())
