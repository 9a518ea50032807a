"""The profile that exercise 7 ships, and the copies with other figures that the grader makes."""

import math

import pytest

from lab_support.learning import compiled_grades
from rownorm_course.catalog import exercises
from rownorm_course.checks.profiling import SHAPES
from rownorm_course.profiles import NAMES, Figures, varied
from rownorm_lab.data.profiles import NEAR_PEAK

FOLDER = exercises()[7].path / "starter" / "profile"
MOST_BYTES = 300_000

needs_profile = pytest.mark.skipif(
    not FOLDER.exists(), reason="the profile that exercise 7 ships was not captured yet: capture.sh"
)


def figures_of(folder, name):
    one = Figures(folder, name)
    achieved, theoretical = one.occupancy
    return {
        "kernel time": one.kernel_time,
        "host time": one.host_time,
        "idle share": one.idle_share,
        "Proton": one.proton_time,
        "achieved occupancy": achieved,
        "theoretical occupancy": theoretical,
        "sectors per request": one.sectors_per_request,
        "peak": one.peak,
        "calls": len(one.calls),
    }


@needs_profile
def test_the_shipped_profile_shows_what_the_exercise_asks_about():
    large, tiny = (figures_of(FOLDER, name) for name in NAMES)
    rows, cols = SHAPES["large"]
    share = 4 * rows * cols / large["kernel time"] / large["peak"]
    assert large["host time"] < large["kernel time"]
    assert share < NEAR_PEAK
    assert large["achieved occupancy"] > share + 0.3
    assert math.isclose(large["sectors per request"], 2, rel_tol=0.02)
    assert tiny["host time"] > tiny["kernel time"]
    assert tiny["idle share"] > 0.5


@needs_profile
@pytest.mark.parametrize("name", NAMES)
def test_the_profilers_agree(name):
    found = figures_of(FOLDER, name)
    assert found["Proton"] == pytest.approx(found["kernel time"], rel=0.2)


@needs_profile
def test_the_shipped_profile_is_small_and_names_no_machine():
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    assert '"path": "workload.py"' in (FOLDER / "request.json").read_text()


@needs_profile
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", NAMES)
def test_a_varied_profile_has_other_figures(name, seed, tmp_path):
    before = figures_of(FOLDER, name)
    after = figures_of(varied(FOLDER, tmp_path, seed), name)
    same = {"theoretical occupancy", "calls"}  # may hardly differ, or not for the large call
    if name == "large":
        same.add("idle share")  # near 0 before and after
    for figure in before.keys() - same:
        assert not math.isclose(before[figure], after[figure], rel_tol=0.02), figure
    assert 0 < after["idle share"] < 1
    assert after["achieved occupancy"] < after["theoretical occupancy"]


@pytest.mark.exhaustive
def test_the_compiler_rejects_the_starters_kernel(tmp_path):
    (tmp_path / "kernel.py").write_bytes(exercises()[7].starter()["kernel.py"])
    steps = compiled_grades([(7, str(tmp_path))])[7, str(tmp_path)]
    assert [(part, habit) for part, _, status, habit, _ in steps if status == "failed"] == [
        ("kernel", "narrow")
    ]
