"""``rownorm learn`` as a learner uses it."""

import json
from pathlib import Path

import msgspec
import pytest

from rownorm.lab.learn import progress, run
from rownorm.lab.learn.catalog import exercises
from support.lab_commands import invoke
from support.learning import put

pytestmark = pytest.mark.usefixtures("command_line")
FOLDER = Path("learn/02_rmsnorm")


def start(number=2):
    ran = invoke("learn", "start", number)
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_the_list_has_every_exercise():
    output = invoke("learn").output
    for one in exercises().values():
        assert one.title in output
    assert f"0 of {100 * len(exercises())} points" in output


def test_start_keeps_files_and_restores_missing_ones():
    assert "rownorm learn check 2" in start()
    (FOLDER / "rmsnorm.py").write_text("mine")
    (FOLDER / "benchmark.py").unlink()
    output = start()
    assert "kept as they were: text.md, rmsnorm.py" in output
    assert (FOLDER / "rmsnorm.py").read_text() == "mine"
    assert (FOLDER / "benchmark.py").exists()


def test_names_and_numbers():
    assert "RMSNorm" in start("rmsnorm")
    ran = invoke("learn", "start", "rmsnrom")
    assert ran.exit_code == 2
    assert "did you mean 02_rmsnorm?" in ran.output
    assert invoke("learn", "start", "99").exit_code == 2


def test_nothing_started():
    for command in ("check", "hint", "solution"):
        ran = invoke("learn", command)
        assert ran.exit_code == 2
        assert "rownorm learn start 1" in ran.output


def test_hints_come_one_by_one():
    start()
    first, second = invoke("learn", "hint").output, invoke("learn", "hint").output
    assert first.startswith("Hint 1 of")
    assert second.startswith("Hint 2 of")
    for _ in range(10):
        last = invoke("learn", "hint").output
    assert "no more than" in last


def test_the_solution_is_shown_after_giving_up():
    start()
    ran = invoke("learn", "solution")
    assert ran.exit_code == 2
    assert "--give-up" in ran.output
    assert "squares += x * x" in invoke("learn", "solution", "--give-up").output
    assert "gave up" in invoke("learn").output
    assert invoke("learn", "solution", "--out", "made").exit_code == 0
    assert Path("made/rmsnorm.py").exists()
    assert invoke("learn", "solution", "--out", "made").exit_code == 2


def test_a_damaged_progress_file_affects_no_other_exercise():
    start(2)
    start(3)
    (FOLDER / ".progress.json").write_text("{")
    assert invoke("learn", "hint", 3).exit_code == 0
    listed = invoke("learn").output
    assert "unreadable" in listed
    ran = invoke("learn", "check", 2)
    assert ran.exit_code == 1
    assert "Your files are not affected" in ran.output


@pytest.mark.exhaustive
def test_check_grades_records_and_submits():
    """Real processes; the list keeps the points, and the folder to hand in has the scores."""
    start(3)
    folder = Path("learn/03_layernorm")
    put(folder, 3, "mean_of_a_hundred")
    one = exercises()[3]
    home = Path("learn")
    grade = run.check(one, folder)
    failed = [(step.part, step.habit) for step in grade.steps if step.status == "failed"]
    assert failed == [("breaking", "small-mean")], [step.message for step in grade.steps]
    assert grade.total == 80
    progress.record(one, home, progress.read(one, home), grade)
    assert "80/100" in invoke("learn").output
    ran = invoke("learn", "submit", 3, "--out", "submission")
    assert ran.exit_code == 0, ran.output
    scores = json.loads(Path("submission/scores.json").read_text())
    assert scores["points"] == 80
    assert Path("submission/layernorm.py").exists()
    assert invoke("learn", "submit", 3, "--out", "submission").exit_code == 2


def test_submit_without_points():
    start(3)
    ran = invoke("learn", "submit", 3, "--out", "submission")
    assert ran.exit_code == 0, ran.output
    assert json.loads(Path("submission/scores.json").read_text())["points"] == 0
    assert invoke("learn", "submit", 3, "--out", "submission").exit_code == 2


def test_an_older_version_is_graded_and_named():
    start()
    path = FOLDER / ".progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 0}))
    (FOLDER / "rmsnorm.py").write_text("def rms_norm(:\n")
    ran = invoke("learn", "check", 2)
    assert ran.exit_code == 1
    assert "of version 0 of the exercise" in ran.output
    assert "rmsnorm.py, line 1" in ran.output
    assert "0 of 100 points" in ran.output


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            ("crashed with SIGSEGV", "3 s"),
        ),
        ("import time; time.sleep(60)", ("did not end within 3 s",)),
    ],
)
def test_code_that_crashes_or_never_ends(line, expected):
    start()
    (FOLDER / "rmsnorm.py").write_text(line)
    hurried = msgspec.structs.replace(exercises()[2], limit_s=3)
    steps = run._steps(hurried, FOLDER, "interpret", [], gpu=False)
    assert steps[0].status == "failed"
    assert any(one in steps[0].message for one in expected)
