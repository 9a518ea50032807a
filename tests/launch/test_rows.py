"""Tensors as rows: strides and alignment."""

import pytest
import torch

from rownorm import launch


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((64, 32), 16), ((64, 36), 4), ((7, 16), 1), ((16, 0), 16), ((6, 10), 2)],
)
def test_alignment(sizes, expected):
    assert launch.rows.alignment(*sizes) == expected


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((4, 8), (8, 1), 8),
        ((4, 8), (10, 1), 10),
        ((4, 8), (0, 1), 0),
        ((4, 8), (1, 4), None),
        ((2, 3, 8), (60, 20, 1), 20),
        ((2, 3, 8), (61, 20, 1), None),
        ((2, 3, 8), (8, 16, 1), None),
        ((1, 3, 8), (999, 20, 1), 20),
        ((2, 1, 8), (20, 999, 1), 20),
        ((4, 1), (5, 7), 5),
        ((8,), (1,), 8),
        ((8,), (2,), None),
        ((0, 8), (8, 1), 8),
    ],
)
def test_row_stride(shape, stride, expected):
    t = torch.zeros(200).as_strided(shape, stride)
    assert launch.rows.row_stride(t) == expected
    if expected is not None:
        rows = torch.arange(t[..., 0].numel()) * expected
        assert torch.equal(t.as_strided((len(rows),), (expected,)), torch.zeros(len(rows)))
