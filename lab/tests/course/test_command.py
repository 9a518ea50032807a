"""``rownorm learn`` as a learner uses it."""

import json
import re
import time
from pathlib import Path

import pytest
import torch

from lab_support.lab_commands import invoke
from lab_support.learning import put
from rownorm_course import grade as grading
from rownorm_course import learner, progress, run
from rownorm_course.catalog import exercises
from rownorm_course.grade import Task
from rownorm_course.grades import Failure, Grade, GradedStep
from rownorm_course.show import Display
from rownorm_course.table import recordings

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
    assert "kept as they were: text.md, discussion.md, predictions.toml, rmsnorm.py" in output
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


def test_the_wrong_folder_is_named_whole(tmp_path):
    ran = invoke("learn", "check", 2, "--folder", "elsewhere")
    assert ran.exit_code == 2
    words = " ".join(ran.output.split())
    assert str(tmp_path / "elsewhere") in words
    assert "--folder" in words
    assert "rownorm learn start 2" in words


def test_start_without_a_number_begins_the_next():
    assert "Exercise 0" in invoke("learn", "start").output
    assert "Exercise 1" in start(1)
    assert "Exercise 2" in invoke("learn", "start").output
    assert "Exercise 3" in invoke("learn", "start").output


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


def graded(number, **statuses):
    """A grade in which the parts have these statuses, and all others have passed."""
    one = exercises()[number]
    steps = [
        GradedStep(part=part.name, name="a step", status=statuses.get(part.name, "passed"))
        for part in one.part
    ]
    return Grade(exercise=one, steps=steps)


def keep(number, files=None, **statuses):
    one, home = exercises()[number], Path("learn")
    files = progress.digests(one, home) if files is None else files
    return progress.record(one, home, graded(number, **statuses), files)


def test_points_that_wait_are_not_lost_by_a_later_mistake():
    start()
    keep(2, speed="pending")
    assert "done, 10 wait" in invoke("learn").output
    keep(2, kernel="failed", module="skipped", blocks="skipped", speed="skipped")
    assert "done, 10 wait" in invoke("learn").output
    assert "90/100" in invoke("learn").output
    keep(2, speed="failed")  # on a GPU, and too slow
    assert "started" in invoke("learn").output


def test_hints_that_are_taken_during_a_check_are_kept():
    start()
    assert invoke("learn", "hint").exit_code == 0
    assert keep(2).hints == 1


def test_submit_takes_the_points_of_the_last_check_of_the_same_files():
    """On a GPU, then without one; the second check does not lose the points of the first."""
    start()
    put(FOLDER, 2)
    keep(2, files={}, comparison="failed")
    keep(2)
    keep(2, speed="pending")
    ran = invoke("learn", "submit")
    assert ran.exit_code == 0, ran.output
    assert "Grading" not in ran.output
    scores = json.loads(Path("submission/02_rmsnorm/scores.json").read_text())
    assert (scores["points"], scores["waiting_for_a_gpu"]) == (100, 0)
    assert Path("submission/02_rmsnorm/rmsnorm.py").exists()


def test_submit_grades_files_that_have_changed():
    start(3)
    keep(3)
    (Path("learn/03_layernorm") / "layernorm.py").write_text("def layer_norm_three_pass(:\n")
    ran = invoke("learn", "submit", 3)
    assert ran.exit_code == 0, ran.output
    assert "Not graded as they are now: layernorm.py" in ran.output
    assert "(best so far: 100)" in ran.output
    scores = json.loads(Path("submission/03_layernorm/scores.json").read_text())
    assert (scores["points"], scores["best"]) == (0, 100)


def test_a_submission_is_replaced_and_nothing_else():
    start(2)
    start(3)
    keep(2)
    keep(3)
    assert "in place of" not in invoke("learn", "submit", 2, "--out", "made").output
    (FOLDER / "benchmark.py").unlink()
    keep(2)
    ran = invoke("learn", "submit", 2, "--out", "made")
    assert "in place of the submission" in ran.output
    assert not Path("made/benchmark.py").exists()
    assert invoke("learn", "submit", 3, "--out", "made").exit_code == 2
    Path("notes").mkdir()
    Path("notes/mine.txt").write_text("mine")
    assert invoke("learn", "submit", 3, "--out", "notes").exit_code == 2


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


def steps(number, limit_s=30):
    """The steps of the interpreter, in real processes."""
    one = exercises()[number]
    folder = Path("learn", one.folder)
    return list(run.steps_of(one, folder, "interpret", {}, run.Watcher(), limit_s=limit_s))


def test_a_crash_fails_its_step_and_no_other():
    """Steps that use the crashed one are listed as not tried; the comparison, in another file, is graded."""
    start()
    put(FOLDER, 2)
    (FOLDER / "rmsnorm.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    found = steps(2)
    assert "crashed with SIGSEGV" in found[0].message
    assert [step.status for step in found if step.part == "comparison"] == ["passed", "passed"]
    skipped = [step for step in found if step.status == "skipped"]
    parts = {"kernel", "module", "blocks", "speed"}
    if torch.cuda.is_available():
        parts.remove("speed")  # it is tried there
    assert {step.part for step in skipped} == parts
    assert all("kernel: the formula failed" in step.message for step in skipped)


def test_a_message_is_shown_once(capsys):
    display = Display()
    for part in ("three_pass", "tuned"):
        step = GradedStep(
            part=part, name="values", status="failed", message=f"still to write: {'much ' * 20}"
        )
        display.ended(step, "interpret")
    output = capsys.readouterr().out
    assert output.count("still to write") == 1
    assert "the same message as above, at three_pass: values" in " ".join(output.split())


def test_a_process_that_ends_by_itself_has_not_graded():
    start()
    put(FOLDER, 2)
    (FOLDER / "rmsnorm.py").write_text("import os\nos._exit(0)\n")
    ran = invoke("learn", "check", 2)
    assert ran.exit_code == 1
    assert "ended with status 0 before the step did" in ran.output
    assert "0 of 100 points" in ran.output


def test_a_step_without_a_result_has_failed(monkeypatch):
    monkeypatch.setattr(run, "steps_of", lambda *_, **__: iter(()))
    grade = run.check(exercises()[3], Path())
    assert {step.status for step in grade.steps} == {"failed"}
    assert grade.total == 0


def test_one_part_is_graded_and_no_other():
    start()
    put(FOLDER, 2)
    ran = invoke("learn", "check", 2, "--part", "comparison")
    assert ran.exit_code == 0
    assert "20 of 100 points" in ran.output
    assert "the formula" not in ran.output
    assert re.search(r"kernel .* not graded", ran.output)
    assert "0/" not in ran.output.replace("20/20", "")
    assert "learn check 2 --part kernel" in ran.output  # what is next
    ran = invoke("learn", "check", 2, "--part", "comparsion")
    assert ran.exit_code == 2
    assert "did you mean comparison?" in ran.output


def test_two_answers_count_for_a_question():
    """A hint after the first wrong one, the explanation after the second, and then no points for the right one."""
    start(1)
    folder = Path("learn/01_basics")
    put(folder, 1)
    answers = folder / "answers.toml"
    right = answers.read_text()
    assert 'program = "c"' in right

    def checked(letter):
        answers.write_text(right.replace('program = "c"', f'program = "{letter}"'))
        return " ".join(invoke("learn", "check", 1, "--part", "questions").output.split())

    assert "look at the grid" in checked("a")
    assert "One more answer counts" in checked("a")  # the same answer is not another one
    assert "37 of 100 points" in checked("b")
    shown = checked("c")
    assert "'a' and 'b' came before: no points. The grid is (n_rows,)" in shown
    assert "37 of 100 points" in shown


def test_an_answer_is_shown_beside_a_sentence():
    start()
    path = FOLDER / "discussion.md"
    assert "registers of each thread" not in path.read_text()
    assert "registers of each thread" not in invoke("learn", "discuss").output
    where = "Where would a single block for a whole row stop working?"
    path.write_text(path.read_text().replace(f"## {where}\n", f"## {where}\n\nAt 1 MB.\n"))
    output = invoke("learn", "discuss").output
    assert "you: At 1 MB." in output
    assert "registers of each thread" in " ".join(output.split())
    assert "write a sentence" in output  # below the others


def test_a_time_is_shown_after_a_prediction(monkeypatch):
    """Each width has the exercise's limit of time, and not all together that of one step."""
    monkeypatch.setattr(learner, "STEP_S", 0.0)
    start()
    put(FOLDER, 2)
    (FOLDER / "predictions.toml").write_text("[microseconds]\ncols_256 = 20\ncols_1024 = 0\n")
    output = invoke("learn", "table", "--cols", "256,1024").output
    predicted, open_one = (line.split() for line in output.splitlines()[-3:-1])
    recorded = recordings()[256]  # on an H200, about 10 µs
    times = [f"{1e6 * recorded[name]:.1f}" for name in ("rownorm", "torch")]
    rate = 2 * (2 * 32768 * 256 + 256) / recorded["rownorm"] / 1e9  # x, y and the weight
    assert 8 < float(times[0]) < 12
    assert predicted[:7] == ["256", "33.6", "20.0", "-", *times, f"{rate:,.0f}"]
    assert open_one[:7] == ["1024", "134.2", "-", "-", "-", "-", "-"]
    assert all(float(line[8]) < 1e-3 for line in (predicted, open_one))
    (FOLDER / "predictions.toml").write_text("[microseconds]\ncols_256 = 'ten'\n")
    assert "expected cols_WIDTH = a number" in invoke("learn", "table").output


def test_helper_files_are_handed_in():
    start()
    put(FOLDER, 2, "kernel_in_a_helper_file", "also_right")
    keep(2)
    assert invoke("learn", "submit").exit_code == 0
    assert Path("submission/02_rmsnorm/helper.py").exists()
    (FOLDER / "helper.py").write_text("changed = True\n")
    one = exercises()[2]
    assert progress.digests(one, Path("learn")) != progress.read(one, Path("learn")).graded


def test_a_loop_that_never_ends_is_stopped_and_its_line_named():
    start()
    put(FOLDER, 2)
    path = FOLDER / "rmsnorm.py"
    text = path.read_text()
    loop = "    print('the loop')\n    while True:\n        n_cols += 0\n"
    begin = text.index("    squares = tl.zeros")
    path.write_text(text[:begin] + loop + text[begin:])
    begun = time.monotonic()
    found = steps(2, limit_s=3)
    assert time.monotonic() - begun < 150
    # The second on a machine that is very busy.
    limit = r"(3 s of processor time|30 s)"
    assert re.search(f"did not end within {limit} and was stopped", found[0].message)
    line = path.read_text().splitlines().index("        n_cols += 0") + 1
    assert any(f"rmsnorm.py, line {near}" in found[0].message for near in (line - 1, line))
    assert found[0].printed.strip() == "the loop"
    assert [step.status for step in found if step.part == "comparison"] == ["passed", "passed"]


def test_what_a_failed_step_printed_is_shown():
    start()
    (FOLDER / "rmsnorm.py").write_text("print('imported')\nraise ValueError('no')\n")
    ran = invoke("learn", "check", 2)
    assert "Your code printed:" in ran.output
    assert "imported" in ran.output
    assert "rmsnorm.py, line 2: ValueError: no" in ran.output


def test_a_part_that_fails_takes_no_points_from_others(monkeypatch):
    """Steps are skipped within its part and in those that come after it; what compiles is graded, too."""
    one = exercises()[5]

    def step(part, name, works):
        def function(_learner):
            if not works:
                raise Failure("wrong")

        return Task(part, name, function, ("compile",) if name == "compiled" else ("interpret",))

    tasks = [
        *(
            step("dx", name, works)
            for name, works in (("a", True), ("b", False), ("compiled", True))
        ),
        *(step("dweight", name, True) for name in ("a", "compiled")),
        *(step("partials", name, name == "a") for name in ("a", "compiled")),
        step("determinism", "a", True),
    ]
    monkeypatch.setattr(grading, "tasks_of", lambda _: tasks)
    monkeypatch.setattr(run, "tasks_of", lambda _: tasks)
    monkeypatch.setattr(run, "has_gpu", lambda: False)
    monkeypatch.setattr(run, "spawner", lambda _: None)
    found = run.check(one, Path())
    assert {part.name: found.points(part) for part in one.part} == {
        "dx": 0,
        "dweight": 30,
        "partials": 0,
        "determinism": 20,
    }
    skipped = [step.title for step in found.steps if step.status == "skipped"]
    assert skipped == ["dx: compiled"]
    assert not found.partial


@pytest.mark.exhaustive
def test_check_grades_records_and_submits():
    """Real processes; the list keeps the points, and the folder to hand in has the scores."""
    start(3)
    put(Path("learn/03_layernorm"), 3, "mean_of_a_hundred")
    ran = invoke("learn", "check", 3)
    assert ran.exit_code == 1
    assert "85 of 100 points" in ran.output
    assert "85/100" in invoke("learn").output
    assert invoke("learn", "submit").exit_code == 0
    scores = json.loads(Path("submission/03_layernorm/scores.json").read_text())
    assert scores["points"] == 85
