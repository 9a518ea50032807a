"""The key of a call has one description, and C and Python build equal keys from it."""

import pytest
import torch

import rownorm
from rownorm.ops import call_key, execute
from rownorm.ops.call_key import EXPRESSIONS, FIELDS, Field
from support.fake_driver import needs_compiler, needs_interpreter

pytestmark = needs_compiler

OPTIONS = (True, 1e-5, 0.0, None, "once")
ADDED = (*FIELDS, Field("attribute", "requires_grad"), Field("method", "dim"))


@pytest.fixture
def module(driver):
    driver.module.use_key_fields(FIELDS)
    yield driver.module
    driver.module.use_key_fields(FIELDS)


def python_key(inputs, fields=FIELDS, want_statistics=True):
    _, forward_key = call_key.key_functions(fields)
    addresses = [None if t is None else t.data_ptr() for t in inputs]
    return forward_key(inputs, addresses, OPTIONS, want_statistics)


def inputs_of(x, residual=None, pre_bias=None, weight=None, bias=None):
    return x, residual, pre_bias, weight, bias


INPUTS = {
    "plain": lambda x, w: inputs_of(x),
    "weight": lambda x, w: inputs_of(x, weight=w),
    "all": lambda x, w: inputs_of(x, x.bfloat16(), w.double(), w, w),
    "strided": lambda x, w: inputs_of(x[:, ::2], weight=w.repeat(2)[::2]),
    "transposed": lambda x, w: inputs_of(x.t(), x.t()),
    "expanded": lambda x, w: inputs_of(x[:1].expand(4, 8), bias=w[:1].expand(8)),
    "misaligned": lambda x, w: inputs_of(x.flatten()[1:17].view(2, 8), weight=w[1:]),
}


@pytest.mark.parametrize("want_statistics", [False, True])
@pytest.mark.parametrize("which", INPUTS)
def test_c_and_python_build_equal_keys(which, want_statistics, module):
    inputs = INPUTS[which](torch.randn(4, 8), torch.randn(8))
    key = python_key(inputs, want_statistics=want_statistics)
    assert module.forward_key(*inputs, OPTIONS, want_statistics) == key
    addresses = [None if t is None else t.data_ptr() for t in inputs]
    assert execute.forward_key(inputs, addresses, OPTIONS, want_statistics) == key


def test_a_field_added_to_the_description_is_in_both_keys(module):
    module.use_key_fields(ADDED)
    inputs = inputs_of(torch.randn(4, 8), weight=torch.randn(8, requires_grad=True))
    key = module.forward_key(*inputs, OPTIONS, True)
    assert key == python_key(inputs, ADDED)
    n_added = len(ADDED) - len(FIELDS)
    assert key[2 + len(FIELDS) :][:n_added] == (False, 2)  # of x
    assert key[-2][len(FIELDS) :] == (True, 1)  # of weight
    other = inputs_of(inputs[0], weight=inputs[3].detach())
    assert module.forward_key(*other, OPTIONS, True) != key
    module.use_key_fields(FIELDS)
    assert module.forward_key(*other, OPTIONS, True) == module.forward_key(*inputs, OPTIONS, True)


@needs_interpreter
@pytest.mark.parametrize("in_both", [True, False])
def test_an_added_field_keeps_the_usual_call_in_c(in_both, eager_in_c, monkeypatch):
    """With a field that only Python has, C finds no call, and every call is Python's."""
    _, forward_key = call_key.key_functions(ADDED)
    monkeypatch.setattr(execute, "forward_key", forward_key)
    eager_in_c.module.use_key_fields(ADDED if in_both else FIELDS)
    x = torch.randn(2, 8, requires_grad=True)
    for _ in range(3):
        rownorm.rms_norm(x)
    assert eager_in_c.in_python == ["forward"] * (1 if in_both else 3)
    eager_in_c.module.use_key_fields(FIELDS)


def test_c_knows_every_kind_of_field_and_no_other(module):
    for kind in EXPRESSIONS:
        module.use_key_fields((Field(kind, "dim"),))
    with pytest.raises(ValueError, match="unknown kind 'storage'"):
        module.use_key_fields((*FIELDS, Field("storage", "dim")))
    with pytest.raises(AttributeError, match="no_such_method"):
        module.use_key_fields((Field("method", "no_such_method"),))
    with pytest.raises(ValueError, match="at most"):
        module.use_key_fields(FIELDS * 3)
