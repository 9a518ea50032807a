"""``tools/analysis_accuracy.py``: its cases, and the page it makes of made-up counters. Measuring needs a GPU."""

import importlib.util
from pathlib import Path

import click
import msgspec
import pytest

from lab_support.analyses import made_up
from rownorm_lab.data.analyses import Measured

TOOL = Path(__file__).parents[3] / "tools" / "analysis_accuracy.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("analysis_accuracy", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(folder, tool, kernel="forward_resident", read=1_000_000):
    """A folder with one analysis and the counters of one kernel."""
    seconds = Measured(seconds=2.5e-6, bytes_per_second=4e11, ceiling=4e12, device="A GPU")
    analysis = msgspec.structs.replace(made_up(), measured=seconds)
    (folder / tool.ANALYSES).write_bytes(msgspec.json.encode([analysis]))
    names = ["ID", "Process ID", "Kernel Name", *tool.METRICS]
    values = ["0", "1", kernel, str(read), "1000000", "40", "75", "64", "0"]
    lines = [names, [""] * len(names), values]
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    (folder / tool.COUNTERS).write_text(f"==PROF== Profiling\n{text}\n")
    return folder


def test_the_cases_cover_both_passes_and_forced_regimes(tool):
    planned = list(tool.cases())
    assert len(planned) >= 20
    assert {32, 128, 262144} <= {one.case.cols for one in planned}
    assert {one.case.direction for one in planned} == {"forward", "backward"}
    assert {"looped", "split"} <= {one.regime for one in planned}
    assert all(one.case.rows * one.case.cols > 0.99 * tool.ELEMENTS for one in planned)


def test_predicted_beside_counted(tool, tmp_path, capsys):
    tool._show(written(tmp_path, tool, read=900_000), tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "64 / 64" in page  # sectors agree
    assert "40 / 40" in page
    assert "75.0 / 75.0" in page
    assert "-20.0%" in page  # 2.0 µs predicted, 2.5 measured
    assert "within 15% for 0 of 1 cases" in page
    assert capsys.readouterr().out.startswith("# Predicted and measured")


def test_the_page_has_what_the_tuner_measured(tool):
    section = (
        (TOOL.parents[1] / "docs" / "analysis-accuracy.md").read_text().partition(tool.TUNED)[2]
    )
    shown = [line.strip("| ").split(" | ") for line in section.splitlines() if " bf16 " in line]
    shown = [line[:3] for line in shown if len(line) == 7]
    assert shown == [
        [case.title, f"{entry['ceiling_gb_per_s']:,}", f"{entry['gb_per_s']:,}"]
        for case, entry in tool._tuned_cases()
    ], "python tools/analysis_accuracy.py tuned --docs docs/analysis-accuracy.md makes it again"
    assert {64, 128, 262144} <= {case.cols for case, _ in tool._tuned_cases()}


def test_the_part_about_the_tuner_stays(tool, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"old\n\n{tool.TUNED}\n\nmeasured\n")
    tool._show(written(tmp_path, tool), page)
    assert page.read_text().endswith(f"|\n\n{tool.TUNED}\n\nmeasured\n")
    assert "old" not in page.read_text()


def test_other_kernels_than_predicted_are_an_error(tool, tmp_path):
    with pytest.raises(click.ClickException, match="expected \\['forward_resident'\\]"):
        tool._show(written(tmp_path, tool, kernel="forward_looped"), None)


def test_the_page_has_every_case(tool):
    """Another regime than the plan's has a second line with the same title."""
    page = (TOOL.parents[1] / "docs" / "analysis-accuracy.md").read_text()
    lines = page.partition("\n## Times\n")[2].splitlines()
    titles = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    planned = [one.case.title for one in tool.cases()]
    assert {one for one in planned if titles.count(one) < planned.count(one)} == set()
