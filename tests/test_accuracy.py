"""Errors against the oracle, beside PyTorch's own, on data that is easy and data that is not."""

import pytest
import torch
from helpers import DATA, DTYPES, ON_GPU, REGIMES, Case, assert_case, forced

NORMS = pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])


def skip_what_is_not_interpreted(dtype: torch.dtype, data: str) -> None:
    if dtype == torch.bfloat16 and data == "denormal" and not ON_GPU:
        pytest.skip("Triton's interpreter converts bf16 subnormals to wrong numbers")


@NORMS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("data", DATA)
def test_many_rows_are_as_accurate_as_torch(data, dtype, center, device):
    skip_what_is_not_interpreted(dtype, data)
    case = Case(center, dtype, (64, 260), data, bias=center)
    with forced("tile", block_rows=16):
        assert_case(case, case.tensors(device), batches=8)


@NORMS
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("regime", REGIMES[1:])
def test_every_regime_is_as_accurate_as_torch(regime, data, center, device):
    case = Case(center, torch.float32, data=data, bias=center)
    with forced(regime):
        assert_case(case, case.tensors(device))
