"""The course on a machine with a GPU: every right solution gets every point, those for speed and traces too."""

import json
import os
import subprocess
import sys

import pytest
import torch

from lab_support.learning import put
from rownorm_course import run
from rownorm_course.catalog import exercises
from rownorm_lab.data.files import write_whole

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def failures(grade):
    return [(step.title, step.message) for step in grade.steps if step.status != "passed"]


def measure(folder):
    """What a learner does in exercise 6: run benchmark.py, and fill in the analysis from its traces."""
    paths = os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "benchmark.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        check=True,
        timeout=540,
    )
    from flashinfer_bench import Trace

    from rownorm_lab.fib.definition import definition_of, norm_of
    from rownorm_lab.fib.traces import record_of

    listed = [Trace.model_validate(one) for one in json.loads((folder / "traces.json").read_text())]
    mine = {
        one.workload.axes["batch"]: one for one in listed if one.solution == "learner_rmsnorm_d4096"
    }
    latency = {batch: one.evaluation.performance.latency_ms * 1e-3 for batch, one in mine.items()}
    definition = definition_of("course", norm_of("course", "rms_norm", 4096, "fp16", 1e-6))
    peak = next(record_of(definition, None, mine[512])).environment.peak_bytes_per_second
    moved = (2 * 512 + 1) * 4096 * 2  # x, out and weight
    text = (folder / "analysis.md").read_text()
    for name, value in (
        ("slowdown_from_1_to_512", latency[512] / latency[1]),
        ("percent_of_peak_at_512", 100 * moved / latency[512] / (peak or 1.0)),
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
