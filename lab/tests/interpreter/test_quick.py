"""What the interpreter keeps: results and errors stay Triton's."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from rownorm_lab.interpreter.arithmetic import mended

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")


@triton.jit
def numbers(x_ptr, i_ptr, out_ptr, BLOCK: tl.constexpr):
    """The same numbers beside blocks of several dtypes and shapes."""
    lanes = tl.arange(0, BLOCK)
    x, i = tl.load(x_ptr + lanes), tl.load(i_ptr + lanes)
    tl.store(out_ptr + lanes, 2 * x + 1)
    tl.store(out_ptr + BLOCK + lanes, 2 * i + 1)
    tl.store(out_ptr + 2 * BLOCK + lanes, 1 / (2.0 * i + 1))
    tl.store(out_ptr + 3 * BLOCK + lanes, tl.sum(2 * x, axis=0) + 1 + (0 * x))
    tl.store(out_ptr + 4 * BLOCK + lanes, (x - 1) * (1 - x) + i // 2 + i % 2)


def test_numbers_are_those_of_the_operation():
    x, i = torch.randn(16), torch.arange(16, dtype=torch.int32)
    expected = [
        2 * x + 1,
        (2 * i + 1).float(),
        1 / (2.0 * i + 1),
        (2 * x).sum() + 1 + 0 * x,
        (x - 1) * (1 - x) + i // 2 + i % 2,
    ]
    for _ in range(2):  # the second time, they are kept
        out = torch.empty(5, 16)
        with mended():
            numbers[(1,)](x, i, out, BLOCK=16)
        torch.testing.assert_close(out, torch.stack(expected))


@triton.jit
def product(x_ptr, y_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(y_ptr + lanes, tl.load(x_ptr + lanes) * 65536)


def test_an_overflow_is_found(monkeypatch):
    builder = interpreter.interpreter_builder
    options = dataclasses.replace(builder.options, sanitize_overflow=True, debug=True)
    monkeypatch.setattr(builder, "options", options)
    x, y = torch.arange(16, dtype=torch.int32), torch.empty(16, dtype=torch.int32)
    with mended():
        product[(1,)](x, y, BLOCK=16)
        assert torch.equal(y, x * 65536)
        x[7] = 1 << 15
        with pytest.raises(Exception, match="int32 overflow detected for operation mul"):
            product[(1,)](x, y, BLOCK=16)


def test_types_of_a_shape_are_shared_and_wrong_shapes_are_refused():
    with mended():
        first, second = tl.block_type(tl.float32, [4, 8]), tl.block_type(tl.int32, [4, 8])
        assert first.shape is second.shape
        assert first.with_element_ty(tl.int32) == second
        assert first != second
        for wrong in ([4.0], [3]):
            with pytest.raises((TypeError, ValueError)):
                tl.block_type(tl.float32, wrong)
