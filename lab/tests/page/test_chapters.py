"""Chapters of the page: what analyze, study, profile and tune saved, as tables and pictures."""

import re
from pathlib import Path

import pytest

from lab_support.analyses import launches, made_up
from rownorm_lab.data import own_analyses
from rownorm_lab.data.analyses import write
from rownorm_lab.data.records import Environment
from rownorm_lab.data.studies import KernelTime, StageRecord, Study, write_study
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


LONG = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
WIDER = """[...document.querySelectorAll('.scroll')]
  .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel)"""


def studied(folder):
    """A study with a long name of a kernel."""

    def stage(name, factor):
        seconds = [0.3 * factor * turn for turn in (1.0, 1.1, 1.0, 0.9, 1.0)]
        parts = {"forward": seconds, "backward": seconds, "step": seconds, "host": seconds}
        kernels = [KernelTime(LONG, 1200, 0.2, is_norm=True)]
        fields = {"peak_bytes": 18_700_000, "kernels": kernels, "run": "one"}
        return StageRecord(stage=name, setting="eager", precision="bf16", **parts, **fields)

    here = Environment(device="A GPU", kind="cuda", torch="2", triton="3")
    records = [stage("baseline", 1.2), stage("fused", 1.1), stage("rownorm", 1)]
    one = Study(
        task="llama", size="tiny", steps=5, parameters=10**6, units=1000, unit="tokens",
        environment=here, records=records,
    )  # fmt: skip
    write_study(folder, one)
    return folder


def test_every_number_of_a_study_is_seen_on_a_phone(tmp_path, visit):
    file = tmp_path / "page.html"
    file.write_text(page([], chapters=chapters_of([studied(tmp_path / "run")])))
    shown = visit(file, viewport={"width": 480, "height": 900})
    shown.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert shown.locator(".scroll").count() == 5
    assert shown.evaluate(WIDER) == []
    # The chart is not shrunk until nobody can read it.
    labels = shown.locator(".still svg .role-axis-label text")
    assert min(box["height"] for box in (one.bounding_box() for one in labels.all())) > 9


def test_the_legend_of_a_study_has_the_colour_and_the_opacities_of_its_bars(tmp_path):
    (chapter,) = chapters_of([studied(tmp_path)])
    look = r'[^>]* fill="([^"]+)"[^>]* opacity="([^"]+)"'
    bars = re.findall(rf"stage: rownorm; part: (\w+);{look}", chapter.html)
    symbol = rf'role-legend-symbol"[^>]*><path{look}.*?role-legend-label.*?>(\w+)</text>'
    legend = re.findall(symbol, chapter.html)
    assert legend == [(colour, opacity, part) for part, colour, opacity in bars]
    assert [part for part, *_ in bars] == ["forward", "backward", "update"]
    assert [opacity for *_, opacity in bars] == ["1", "0.7", "0.4"]


def test_many_launches_of_a_kernel_are_lines(tmp_path, visit):
    for name, n in (("few", 5), ("many", 6)):
        own_analyses.write(tmp_path / name, launches(n))
    few, many = (chapters_of([tmp_path / name])[0].html for name in ("few", "many"))
    assert "<th>registers per thread</th>" in few
    assert '<th class="number">registers</th>' in many
    assert many.count("<th>BLOCK ") == 6
    file = tmp_path / "page.html"
    file.write_text(page([], chapters=chapters_of([tmp_path / "many"])))
    for width in (480, 1400):
        assert visit(file, viewport={"width": width, "height": 900}).evaluate(WIDER) == []
