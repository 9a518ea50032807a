"""Errors against the oracle, compared with PyTorch's own errors, on easy and difficult data."""

import math

import pytest
import torch
import triton
import triton.language as tl

from rownorm.kernels.bundles import Spec, spec_of
from rownorm.kernels.moments import inverse_std
from support.cases import DTYPES, Case
from support.criterion import assert_case
from support.data import DATA
from support.regimes import REGIMES, forced

NORMS = pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])


@NORMS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("data", DATA)
def test_many_rows_are_as_accurate_as_torch(data, dtype, center, device):
    case = Case(center, dtype, (32, 260), data, bias=center)
    with forced("tile", block_rows=16):
        assert_case(case, case.tensors(device), batches=8)


@NORMS
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("regime", REGIMES[1:])
def test_every_regime_is_as_accurate_as_torch(regime, data, center, device):
    case = Case(center, torch.float32, data=data, bias=center)
    with forced(regime):
        assert_case(case, case.tensors(device))


@triton.jit
def _inverse_stds(
    m2_ptr, rstd_ptr, n, PROGRAM: tl.constexpr, FAST_RSTD: tl.constexpr, N: tl.constexpr
):
    SPEC: tl.constexpr = spec_of(PROGRAM)
    lanes = tl.arange(0, N)
    m2 = tl.load(m2_ptr + lanes)
    tl.store(rstd_ptr + lanes, inverse_std(m2, tl.cast(n, tl.float32), SPEC, FAST_RSTD))


@pytest.mark.parametrize("fast_rstd", [False, True], ids=["rounded", "fast_rstd"])
@pytest.mark.parametrize("eps", [1e-5, 0.0])
def test_rstd_has_22_bits(eps, fast_rstd, device):
    """For sums of squares from 1e-34 to 1e38, and infinity, NaN and 0."""
    n = 1000
    m2 = torch.logspace(-34, 38, 4096, dtype=torch.float64).float()
    m2[:3] = torch.tensor([math.inf, math.nan, 0.0])
    rstd = torch.empty(4096, device=device)
    fields = dict.fromkeys(Spec._fields) | {"EPS": eps, "COMPUTE_DTYPE": "fp32"}
    program = Spec(**fields)
    _inverse_stds[(1,)](m2.to(device), rstd, n, program, fast_rstd, 4096)
    rstd = rstd.double().cpu()
    assert rstd[0] == 0.0
    assert rstd[1].isnan()
    truth = (m2.double() / n + eps).rsqrt()
    torch.testing.assert_close(rstd[2:], truth[2:], rtol=2**-22, atol=0.0)
