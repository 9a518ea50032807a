"""Autocast: the same policy as for torch's norms, on this device and, with fake tensors, for CUDA."""

import contextlib
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import rownorm
from rownorm.ops.autocast import IS_CAST, autocast_program
from rownorm.program import Program
from support.operators import COLS, OPERATORS, ROWS, full_cases, gradients, same_bits

HALVES = (torch.float16, torch.bfloat16)
half_precision = pytest.mark.parametrize("dtype", HALVES, ids=str)
any_precision = pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)


@contextlib.contextmanager
def cuda_autocast_without_cuda():
    """Autocast for CUDA over fake tensors: the dispatcher's part of it needs no GPU."""
    enabled = torch.is_autocast_enabled("cuda")
    with FakeTensorMode():
        torch.set_autocast_enabled("cuda", True)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", enabled)


def within_roundings(actual, expected):
    """Both were rounded once, after sums whose order may differ: a call on 16-bit rows has another plan."""
    for one, other in zip(actual, expected, strict=True):
        eps = torch.finfo(one.dtype).eps
        slack = 8 * eps if one.dtype == torch.float32 else eps
        torch.testing.assert_close(one, other, rtol=2 * slack, atol=slack)


def output_dtypes(x, residual):
    """The output dtypes of torch's norms and of ours, by operator."""
    shape = x.shape[-1:]
    torchs = {"layer_norm": F.layer_norm(x, shape).dtype, "rms_norm": F.rms_norm(x, shape).dtype}
    ours = {}
    for name in OPERATORS:
        rows = (x, residual) if name.startswith("add_") else (x,)
        results = getattr(rownorm, name)(*rows)
        y = results[0] if name.startswith("add_") else results
        ours[name] = y.dtype
        if name.startswith("add_"):
            assert results[1].dtype == residual.dtype, "the residual stream keeps its dtype"
    return torchs, ours


def assert_same_policy(torchs, ours):
    assert ours == {name: torchs[name.removeprefix("add_")] for name in OPERATORS}


@any_precision
@pytest.mark.parametrize("residual_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_policy(dtype, residual_dtype, device):
    x = torch.randn(ROWS, COLS, device=device, dtype=dtype)
    residual = torch.randn(ROWS, COLS, device=device, dtype=residual_dtype)
    with torch.autocast(device, torch.bfloat16):
        assert_same_policy(*output_dtypes(x, residual))


@any_precision
def test_policy_of_cuda(dtype):
    with cuda_autocast_without_cuda():
        x, residual = (torch.empty(ROWS, COLS, device="cuda", dtype=dtype) for _ in range(2))
        torchs, ours = output_dtypes(x, residual)
    assert_same_policy(torchs, ours)
    assert ours["layer_norm"] == (torch.float32 if dtype in HALVES else dtype)


@full_cases
@half_precision
def test_numbers(case, dtype, device):
    """The result equals that of a call on tensors that were cast as autocast casts them."""
    tensors = case.tensors(device, dtype)
    with torch.autocast(device, dtype):
        outputs = case(**tensors)
    seen = torch.float32 if outputs[0].dtype == torch.float32 else dtype
    within_roundings(outputs, case(**{**tensors, "x": tensors["x"].to(seen)}))


@full_cases
@half_precision
def test_gradients(case, dtype, device):
    """Gradients have the dtypes of the caller's tensors."""
    tensors = case.tensors(device, dtype, requires_grad=True)
    with torch.autocast(device, dtype):
        outputs = case(**tensors)
    actual = gradients(outputs, tensors)
    assert {g.dtype for g in actual} == {dtype}
    cast = {**tensors, "x": tensors["x"].to(outputs[0].dtype)}
    within_roundings(actual, gradients(case(**cast), tensors))


@half_precision
@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_options_under_autocast(center, dtype):
    """Rows that torch would cast are rounded once, to fp32. A call with an out_dtype of its own keeps it."""
    program = Program(center, 1e-5, rounding="llama")
    is_cast = IS_CAST[center]
    expected = program._replace(out_dtype=torch.float32, rounding="once") if is_cast else program
    assert autocast_program(dtype, program) == expected
    assert autocast_program(torch.float32, program) == program
    # A plain tuple of the same options is equal to the program, also in a cache.
    assert isinstance(autocast_program(torch.float64, tuple(program)), Program)
    assert isinstance(autocast_program(torch.float64, program), Program)
    explicit = program._replace(out_dtype=torch.bfloat16)
    assert autocast_program(dtype, explicit) == explicit


def test_options_that_are_refused_are_not_kept():
    rounding = torch.tensor(1.0)
    kept = weakref.ref(rounding)
    with pytest.raises(ValueError, match="rounding must be one of"):
        autocast_program(torch.bfloat16, tuple(Program(False, 1e-6, rounding=rounding)))
    del rounding
    gc.collect()
    assert kept() is None


@half_precision
def test_no_kernel_casts_the_rows(dtype, device):
    """The dispatcher's way: under autocast no operator but rownorm's is called."""
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            seen.append(operator.namespace)
            return operator(*args, **(kwargs or {}))

    with cuda_autocast_without_cuda(), Mode():
        x = torch.empty(ROWS, COLS, device="cuda", dtype=dtype)
        seen.clear()
        y = rownorm.layer_norm(x)
    assert y.dtype == torch.float32
    assert set(seen) == {"rownorm"}


@full_cases
def test_disabled_inside(case, device):
    tensors = case.tensors(device, torch.bfloat16)
    with torch.autocast(device, torch.bfloat16), torch.autocast(device, enabled=False):
        outputs = case(**tensors)
    same_bits(outputs, case(**tensors))


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # of torch's RMSNorm
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
def test_model(norm, device):
    """A model under autocast trains as it does with torch's modules."""

    def model(namespace):
        torch.manual_seed(3)
        layers = (
            torch.nn.Linear(COLS, COLS),
            getattr(namespace, norm)(COLS),
            torch.nn.Linear(COLS, 4),
        )
        return torch.nn.Sequential(*layers).to(device)

    def step(model, x):
        with torch.autocast(device, torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    x = torch.randn(ROWS, COLS, device=device)
    actual, expected = step(model(rownorm.nn), x), step(model(torch.nn), x)
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.02)  # bf16 products
