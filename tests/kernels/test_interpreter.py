"""The tests' changes to Triton's interpreter: ``support/interpreter.py``."""

import pytest
import torch
import triton
import triton.language as tl

import rownorm
from support.regimes import ON_GPU

pytestmark = pytest.mark.skipif(ON_GPU, reason="kernels run on the GPU, not in the interpreter")


@triton.jit
def _fails():
    tl.static_assert(False, "on purpose")


def test_the_language_is_restored_after_a_kernel():
    before = tl.load, tl.core.load, vars(tl.tensor).get("__bool__"), tl.sum, tl.core.reduce
    x = torch.randn(3, 40, requires_grad=True)
    rownorm.layer_norm(x).sum().backward()
    assert before == (
        tl.load,
        tl.core.load,
        vars(tl.tensor).get("__bool__"),
        tl.sum,
        tl.core.reduce,
    )


def test_the_language_is_restored_after_an_error():
    before = tl.load, tl.static_assert
    for _ in range(2):
        with pytest.raises(Exception, match="on purpose"):
            _fails[(1,)]()
    assert before == (tl.load, tl.static_assert)
