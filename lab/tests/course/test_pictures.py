"""The pictures in the texts are those that the code draws."""

import pytest

from rownorm_course.catalog import exercises
from rownorm_course.pictures import MARK, PICTURES, drawn

TEXTS = [(one.path / "text.md").read_text() for one in exercises().values()]
SHOWN = {found[1]: found[0] for text in TEXTS for found in MARK.finditer(text)}


@pytest.mark.parametrize("name", [one for one in PICTURES if one != "instructions"])
def test_a_text_has_the_picture(name):
    assert SHOWN[name] == drawn(name)


def test_every_mark_has_a_picture():
    assert SHOWN.keys() == PICTURES.keys()


def test_what_the_pictures_say():
    """Figures that the texts repeat."""
    assert "every other, 4 bytes      128         8    50%" in SHOWN["sectors"]
    assert "  31" * 8 in SHOWN["reduction"]
    assert "variance = 3.8889; mean(x^2) - mean(x)^2 in fp32 = 0.0000" in SHOWN["welford"]


@pytest.mark.exhaustive
def test_the_instructions_of_a_sum():
    """Compiled: other versions of Triton may use other registers, but five exchanges in a warp of 32 lanes."""
    assert drawn("instructions").count("shfl.sync.bfly") == SHOWN["instructions"].count("shfl.sync")
    assert SHOWN["instructions"].count("shfl.sync.bfly") == 5
    assert "gfx942" in SHOWN["instructions"]
