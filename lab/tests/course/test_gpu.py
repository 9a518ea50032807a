"""The course on a machine with a GPU: every right solution gets every point, those for speed and traces too."""

import os
import subprocess
import sys

import pytest
import torch

from lab_support.learning import put
from rownorm_course import run
from rownorm_course.catalog import exercises
from rownorm_lab.data.files import write_whole
from rownorm_lab.data.records import read as read_records
from rownorm_lab.data.statistics import summarize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def failures(grade):
    return [(step.title, step.message) for step in grade.steps if step.status != "passed"]


def measure(folder):
    """What a learner does in exercise 6: run benchmark.py, and fill in the analysis from its device times."""
    paths = os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "benchmark.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        check=True,
        timeout=540,
    )
    found = {
        one.case.rows: one
        for one in read_records(folder / "records.jsonl").records
        if one.provider.startswith("learner")
    }
    seconds = {batch: summarize(one.seconds).median for batch, one in found.items()}
    peak = found[512].environment.peak_bytes_per_second
    text = (folder / "analysis.md").read_text()
    for name, value in (
        ("slowdown_from_1_to_512", seconds[512] / seconds[1]),
        (
            "percent_of_peak_at_512",
            100 * found[512].case.compulsory_bytes / seconds[512] / (peak or 1.0),
        ),
    ):
        assert f"{name}:\n" in text
        text = text.replace(f"{name}:\n", f"{name}: {value:.4g}\n")
    (folder / "analysis.md").write_text(text)


@pytest.mark.parametrize("number", exercises())
def test_right_solutions_get_every_point(number, tmp_path):
    one = exercises()[number]
    folder = put(tmp_path, number)
    if number == 6:
        pytest.importorskip("flashinfer_bench")
        before = dict(failures(run.check(one, folder)))
        assert "run python benchmark.py" in before["benchmark: traces"]
        measure(folder)
    grade = run.check(one, folder)
    assert grade.total == one.points, failures(grade)


@pytest.mark.parametrize("number", exercises())
def test_starters_get_no_points_and_do_not_crash(number, tmp_path):
    for name, content in exercises()[number].starter().items():
        write_whole(tmp_path / name, content)
    grade = run.check(exercises()[number], tmp_path)
    assert grade.total == 0
    assert not any("crashed" in step.message for step in grade.steps)
