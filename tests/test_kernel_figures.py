"""The figures of docs/kernels.md: one for each regime, as the script writes them."""

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rownorm.launch.planning.settings import REGIMES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "tools" / "kernel_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_regime_has_a_figure_that_the_page_shows(tool):
    assert set(tool.FIGURES) == set(REGIMES)
    assert {path.stem for path in tool.FOLDER.iterdir()} == set(REGIMES)
    page = (DOCS / "kernels.md").read_text()
    assert all(f"](kernels/{regime}.svg)" in page for regime in REGIMES)


@pytest.mark.parametrize("regime", REGIMES)
def test_figures_are_what_the_script_writes(tool, regime):
    text = (tool.FOLDER / f"{regime}.svg").read_text()
    assert text == tool.figure(regime), "run python tools/kernel_figures.py"


@pytest.mark.parametrize("regime", REGIMES)
def test_figures_are_readable_for_everyone(tool, regime):
    """Described, small, in dark, without motion where that is asked for, and nothing drawn outside of them."""
    text = tool.figure(regime)
    picture = ET.fromstring(text)
    assert all(step.caption.split(".")[0] in text for step in tool.FIGURES[regime][1])
    assert "prefers-color-scheme: dark" in text
    motion = text.index("prefers-reduced-motion: no-preference")
    assert motion < text.index("animation:")
    assert len(text) < 20_000
    width, height = map(float, picture.get("viewBox").split()[2:])
    for one in picture.iter():
        if one.get("x"):
            assert 0 <= float(one.get("x")) < width
            assert 0 <= float(one.get("y")) < height
    for step in tool.FIGURES[regime][1]:
        for first, rows, _ in step.programs:
            assert all(first + len(row) <= 16 for row in rows)
        assert all(len(row) in (4, 16) for _, rows in step.memory for row in rows)
