"""The key of a call in C tells apart whatever the key of ops/call_key.py tells apart."""

import itertools

import pytest
import torch

import rownorm
from rownorm.ops import call_key, execute
from rownorm.program import Inputs, Program
from support.fake_driver import needs_compiler, needs_interpreter

pytestmark = needs_compiler

OPTIONS = tuple(Program(True, 1e-5))


@pytest.fixture
def module(driver):
    return driver.module


def python_key(inputs, want_statistics=True):
    _, key = call_key.forward_key(inputs, OPTIONS, want_statistics)
    return key


def inputs_of(x, residual=None, pre_bias=None, weight=None, bias=None, **samples):
    return Inputs(x, residual, pre_bias, weight, bias, **samples)


def variety():
    """Inputs that differ in one property at a time: presence, shape, strides, dtype, alignment."""
    x, w = torch.randn(4, 8), torch.randn(16)
    flat = torch.randn(64)
    yield inputs_of(x)
    yield inputs_of(x, weight=w[:8])
    yield inputs_of(x, bias=w[:8])
    yield inputs_of(x, pre_bias=w[:8])
    yield inputs_of(x, scale=w[:8])
    yield inputs_of(x, shift=w[:8])
    yield inputs_of(x, scale=x)
    yield inputs_of(x, scale=x.repeat(1, 2)[:, :8])
    yield inputs_of(x, x)
    yield inputs_of(x, x.bfloat16())
    yield inputs_of(x, x.half())
    yield inputs_of(x.bfloat16())
    yield inputs_of(x.half())
    yield inputs_of(x.double())
    yield inputs_of(x[:, ::2])
    yield inputs_of(x[:, :4])
    yield inputs_of(x.t())
    yield inputs_of(x[None])
    yield inputs_of(x[:1].expand(4, 8))
    yield inputs_of(x, weight=w[::2])
    yield inputs_of(x, weight=w[:1].expand(8))
    for start in range(4):
        yield inputs_of(flat[start : start + 16].view(2, 8))
        yield inputs_of(x, weight=w[start : start + 8])


def test_calls_that_differ_for_python_differ_in_c(module):
    calls = [(inputs, wanted) for inputs in variety() for wanted in (False, True)]
    c_keys = [module.forward_key(*inputs, wanted) for inputs, wanted in calls]
    python_keys = [python_key(*call) for call in calls]
    assert None not in c_keys
    for one, other in itertools.combinations(range(len(calls)), 2):
        if python_keys[one] != python_keys[other]:
            assert c_keys[one] != c_keys[other], (calls[one], calls[other])


def test_equal_tensors_at_other_addresses_have_equal_keys(module):
    keys = {
        module.forward_key(*inputs_of(torch.randn(4, 8), weight=torch.randn(8)), True)
        for _ in range(5)
    }
    assert len(keys) == 1


def test_python_looks_at_unusual_tensors(module):
    assert module.forward_key(*inputs_of(torch.empty(0, 8)), True) is None
    assert module.forward_key(*inputs_of(torch.randn(*[1] * 8, 8)), True) is None  # 9 dimensions
    with pytest.raises((RuntimeError, BufferError)):
        module.forward_key(*inputs_of(torch.randn(4, 8).to_mkldnn()), True)


@needs_interpreter
@pytest.mark.parametrize("eager_in_c", ["c++"], indirect=True)
def test_a_call_is_asked_for_once(eager_in_c, monkeypatch):
    asked = []
    find = execute.find_forward
    monkeypatch.setattr(execute, "find_forward", lambda *a: asked.append(a) or find(*a))
    x = torch.randn(2, 8, requires_grad=True)
    for _ in range(3):
        rownorm.rms_norm(x)
        rownorm.rms_norm(x.detach())
    assert len(asked) == 2  # with and without statistics
    execute._forget()
    rownorm.rms_norm(x)
    assert len(asked) == 3
