"""Chapters of the page: what analyze, study, profile and tune saved, as tables and pictures."""

import re
from pathlib import Path

import pytest

from lab_support.analyses import made_up
from rownorm_lab.data.analyses import write
from rownorm_lab.data.tables import Table
from rownorm_lab.page.chapter import table_html
from rownorm_lab.page.chapters import chapters_of
from rownorm_lab.page.page import page

PROFILED = Path(__file__).parents[1] / "commands" / "profile" / "captured" / "h200"


@pytest.fixture
def written(tmp_path):
    """A page with analyses of block sizes and a profile."""
    write(tmp_path / "run", [made_up(), made_up(64, 2), made_up(256, 8)])
    file = tmp_path / "page.html"
    file.write_text(page([], chapters=chapters_of([tmp_path / "run", PROFILED])))
    return file


def test_headings_are_aligned_as_their_cells():
    lines = [["a", "1.5 µs", "kernel", ""], ["b", "", "3 of them", "-2%"]]
    html = table_html(Table("Times", ["name", "time", "why", "change"], lines))
    cells = re.findall(r"<t[hd](?: class=\"(\w+)\")?>", html)
    assert cells == 3 * ["", "number", "", "number"]


def test_the_plan_and_the_ceiling_are_on_the_page(written):
    text = written.read_text()
    assert f"<dt>plan</dt><dd>{made_up().plan}</dd>" in text
    assert "<dt>ceiling</dt>" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(visit, written, scheme):
    shown = visit(written, viewport={"width": 480, "height": 900}, color_scheme=scheme)
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    widths = shown.evaluate(
        "[...document.querySelectorAll('.still svg')].map(one => one.getBoundingClientRect().right)"
    )
    assert len(widths) == 2
    assert max(widths) <= 480
    # A picture has the page's colors.
    colors = shown.evaluate(
        "[getComputedStyle(document.querySelector('.still svg text')).fill, getComputedStyle(document.body).color]"
    )
    assert colors[0] == colors[1]
    backgrounds = shown.evaluate(
        "[...document.querySelectorAll('.still svg > rect')].map(one => getComputedStyle(one).fill)"
    )
    assert not any("255, 255, 255)" in one for one in backgrounds)
    hints = shown.evaluate(
        "[...document.querySelectorAll('.scroll.whole')].filter(one => one.offsetParent)"
        ".map(one => [one.scrollWidth > one.clientWidth + 1, !!one.previousElementSibling.offsetParent])"
    )
    assert all(wide == hinted for wide, hinted in hints)
    assert any(wide for wide, _ in hints)
