"""Shapes as text are parsed, or refused with an example."""

import pytest

from rownorm_lab.data.shapes import parse_shapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096x8192", [(4096, 8192)]),
        ("8,32x4096", [(8, 4096), (32, 4096)]),
        ("2x8,16", [(2, 8), (2, 16)]),
        ("1..8x4096", [(1, 4096), (2, 4096), (4, 4096), (8, 4096)]),
        ("4x3..13", [(4, 3), (4, 6), (4, 12)]),
        ("4x256..1024:256", [(4, 256), (4, 512), (4, 768), (4, 1024)]),
        ("4x10..25:10", [(4, 10), (4, 20)]),
        ("1, 4 x 4k,1m", [(1, 4096), (1, 1048576), (4, 4096), (4, 1048576)]),
        ("4X8", [(4, 8)]),
        ("4,4x8..8", [(4, 8)]),
    ],
)
def test_shapes_are_parsed(text, expected):
    assert parse_shapes(text) == expected


@pytest.mark.parametrize(
    "text",
    (
        *("", "4096", "x", "4x", "4x8x2", "4*8", "-4x8", "4.5x8", "fourx8", "4,x8", "4x8g", "0x8"),
        *("4x8..", "4x..8", "4x8..4", "4x8..16:0", "4x8:2"),
    ),
)
def test_malformed_shapes_are_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write for example 4096x8192") as error:
        parse_shapes(text)
    assert repr(text) in str(error.value)
