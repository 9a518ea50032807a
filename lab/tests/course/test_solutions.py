"""The grader gives every right solution full points and rejects every wrong one for its own reason."""

import importlib.util

import pytest
import torch
import triton.language as tl

from lab_support.learning import (
    also_right_solutions,
    compiled_grades,
    only_compiled,
    put,
    reason,
    rejecting_step,
    wrong_solutions,
)
from rownorm_course.catalog import exercises
from rownorm_course.grade import grade, one_step, tasks_of
from rownorm_course.habits import HABITS
from rownorm_course.learner import Learner
from rownorm_lab.data.files import write_whole

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="for the interpreter; test_gpu.py is for a GPU"
)
NEEDS_FIB = {6}
NEEDS_PROFILE = {7}
# What is found where the whole exercise is graded, if it is not the reason alone.
IN_SEVERAL_PARTS = {
    (2, "replaces_what_watches"): [("kernel", "patches-grader"), ("comparison", "patches-grader")],
    (3, "bias_rounded_in_the_kernel"): [
        (part, "two-roundings") for part in ("three_pass", "two_pass", "welford")
    ],
    (5, "every_program_has_all_rows"): [("dx", "shared-write"), ("dweight", "shared-write")],
    (6, "hand_written_traces"): [("benchmark", "hand-written"), ("analysis", "hand-written")],
}
for kept in ("result_of_the_last_call", "ring_of_four_results"):
    IN_SEVERAL_PARTS[5, kept] = [(part, "kept-result") for part in ("dx", "dweight")]
RIGHT_BUT_SLOW = {(7, "kernel")}  # parts of starters that only the compiled steps reject
# Unusual solutions with many small accesses, which the interpreter takes long for, or near to others.
LONG = {
    (0, "other_shapes"),
    (2, "converts_around_the_kernel"),
    (2, "custom_operator"),
    (2, "programs_that_go_through_rows"),
    (2, "sums_of_scalars_from_the_end"),
    (3, "tiles_and_merged_lanes"),
    (3, "two_pass_in_registers"),
    (3, "welford_of_groups"),
    (5, "a_kernel_for_each_gradient"),
    (5, "dx_copied_from_fp32"),
    (5, "masked_scalars"),
    (5, "memory_that_is_resized"),
    (5, "names_of_other_tensors"),
}


def skip_without_packages(number):
    if number in NEEDS_FIB and importlib.util.find_spec("flashinfer_bench") is None:
        pytest.skip("flashinfer-bench is not installed")
    if number in NEEDS_PROFILE and not (exercises()[number].path / "starter" / "profile").exists():
        pytest.skip("the profile that the exercise ships was not captured yet: capture.sh")


@pytest.fixture
def learner_of():
    """A function that gives the Learner of a folder; its process ends with the test."""
    made = []

    def make(folder, number, mode="interpret"):
        made.append(Learner(folder, number, mode, 11))
        return made[-1]

    yield make
    for one in made:
        one.close()


def interpreted(number):
    return [task for task in tasks_of(number) if "interpret" in task.modes]


def compiles(number):
    return any("compile" in task.modes for task in tasks_of(number))


def of_one(number, solutions):
    return [name for which, name in solutions if which == number]


def failures(steps):
    return [(step.part, step.habit) for step in steps if step.status == "failed"]


def skip_without_block_pointers():
    if "have been removed" in tl.make_block_ptr.__doc__:
        pytest.skip("Triton from 3.9 on has no block pointers")


@pytest.mark.parametrize("number", exercises())
def test_right_solutions_have_full_points(number, tmp_path, learner_of):
    skip_without_packages(number)
    learner = learner_of(put(tmp_path, number), number)
    steps = list(grade(learner))
    assert steps
    assert not failures(steps), [step.message for step in steps]
    assert all(step.status in ("passed", "pending") for step in steps)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        pytest.param(*one, marks=[pytest.mark.exhaustive] if one in LONG else [])
        for one in also_right_solutions()
    ],
)
def test_unusual_solutions_have_full_points(number, name, tmp_path, learner_of):
    skip_without_packages(number)
    folder = put(tmp_path, number, name, "also_right")
    if any("make_block_ptr" in file.read_text() for file in folder.glob("*.py")):
        skip_without_block_pointers()
    learner = learner_of(folder, number)
    steps = list(grade(learner))
    assert not failures(steps), [step.message for step in steps]
    assert all(step.status in ("passed", "pending") for step in steps)


def wrong_in_the_interpreter():
    """Wrong solutions as parameters. The first one for each reason is always tried, the others if exhaustive."""
    seen = set()
    for number, name in wrong_solutions():
        if not only_compiled(number, name):
            key = (number, *reason(number, name))
            yield pytest.param(number, name, marks=[pytest.mark.exhaustive] if key in seen else [])
            seen.add(key)


@pytest.mark.parametrize(("number", "name"), list(wrong_in_the_interpreter()))
def test_wrong_solutions_fail_in_their_step(number, name, tmp_path, learner_of):
    """That step only: that no other rejects them, or one before it, is in the exhaustive test."""
    skip_without_packages(number)
    part, habit = reason(number, name)
    wanted = part, rejecting_step(number, name)
    (task,) = (one for one in interpreted(number) if (one.part, one.name) == wanted)
    step = one_step(learner_of(put(tmp_path, number, name), number), task)
    assert (step.status, step.habit) == ("failed", habit), step.message
    assert step.message


@pytest.mark.parametrize(
    ("file", "old", "new", "habit", "text"),
    [
        # What FlashInfer-Bench's clock gives: the launch is in it.
        ("analysis.md", "at_512: 44.3", "at_512: 5.82", "not-your-figures", "the device 3.95 µs"),
        ("analysis.md", "to_512: 2.62", "to_512: 1.085", "not-your-figures", "device time"),
        ("records.jsonl", "NVIDIA H200", "NVIDIA A100", "hand-written", "and the trace on"),
        ("records.jsonl", '"learner (learner)"', '"other"', "batches", "lacks batch"),
        ("records.jsonl", "e-6", "e-4", "hand-written", "longer than the call"),
    ],
)
def test_bandwidth_is_that_of_the_device(file, old, new, habit, text, tmp_path, learner_of):
    skip_without_packages(6)
    folder = put(tmp_path, 6, "measured_traces", "also_right")
    (folder / file).write_text((folder / file).read_text().replace(old, new))
    (task,) = (one for one in tasks_of(6) if one.name == "your own figures")
    step = one_step(learner_of(folder, 6), task)
    assert (step.status, step.habit) == ("failed", habit), step.message
    assert text in " ".join(step.message.split())


def test_atomics_fail_whatever_the_data_are(tmp_path, learner_of):
    """A sum in another order may have the same bits."""
    (task,) = (one for one in tasks_of(0) if one.part == "total")
    learner = learner_of(put(tmp_path, 0, "total_by_atomics"), 0)
    for seed in range(3):
        learner.seed = seed
        assert one_step(learner, task).habit == "atomics"


def test_pictures_are_of_the_call_that_failed(tmp_path, learner_of):
    """Else of one that shows what the puzzle is about: several programs, a transposed x."""
    tasks = {one.part: one for one in tasks_of(0)}
    learner = learner_of(put(tmp_path, 0), 0)
    assert "program 3, line" in one_step(learner, tasks["blocks"]).message
    transposed = one_step(learner, tasks["strides"]).message
    assert "6 sectors of 32 bytes, where 1 would hold" in transposed
    (tmp_path / "wrong").mkdir()
    learner = learner_of(put(tmp_path / "wrong", 0, "one_block"), 0)
    failed = one_step(learner, tasks["blocks"]).message
    assert "add of 1000, 1000: 744 of 1000 elements were never written" in failed
    assert "256 lanes have z[0] to [255]" in failed


@pytest.mark.parametrize("number", exercises())
def test_starters_are_not_solutions(number, tmp_path, learner_of):
    skip_without_packages(number)
    for name, content in exercises()[number].starter().items():
        write_whole(tmp_path / name, content)
    learner = learner_of(tmp_path, number)
    for part in exercises()[number].part:
        if (number, part.name) in RIGHT_BUT_SLOW:
            continue
        first = next((one for one in interpreted(number) if one.part == part.name), None)
        if first is not None and first.modes != ("gpu",):
            assert one_step(learner, first).status == "failed", part.name


def test_exercises_are_complete():
    for number, one in exercises().items():
        assert sum(part.points for part in one.part) == 100
        assert {task.part for task in tasks_of(number)} == {part.name for part in one.part}
        assert len(one.hints()) >= 3
        wrong = of_one(number, wrong_solutions())
        assert len(wrong) >= 3
        edited = {name for name in one.starter() if not one.is_given(name)}
        assert edited - {"text.md", "discussion.md"} <= set(one.right())
        assert len(one.discussion()) >= 2
        for name in wrong:
            part, habit = reason(number, name)
            assert habit in HABITS
            assert part in {each.name for each in one.part}


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [one for one in exercises() if compiles(one)])
def test_compiled_steps(number, tmp_path):
    """Right solutions pass; a wrong one that only the compiler shows is rejected for its reason, and no other is."""
    skip_without_packages(number)
    kept = [
        ("", "right"),
        *((name, "also_right") for name in of_one(number, also_right_solutions())),
    ]
    kept += [
        (name, "wrong") for name in of_one(number, wrong_solutions()) if only_compiled(number, name)
    ]
    folders = {
        (name, kind): put(tmp_path / (name or kind), number, name, kind) for name, kind in kept
    }
    grades = compiled_grades([(number, str(folder)) for folder in folders.values()])
    for (name, kind), folder in folders.items():
        steps = grades[number, str(folder)]
        failed = [(part, habit) for part, _, status, habit, _ in steps if status == "failed"]
        if kind == "wrong":
            assert reason(number, name) in failed, (name, steps)
        else:
            assert not failed, (name, steps)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "name"), wrong_solutions())
def test_wrong_solutions_fail_nowhere_else(number, name, tmp_path, learner_of):
    skip_without_packages(number)
    learner = learner_of(put(tmp_path, number, name), number)
    failed = [step for step in grade(learner) if step.status == "failed"]
    if only_compiled(number, name):
        assert failed == []
        return
    assert failures(failed) == IN_SEVERAL_PARTS.get((number, name), [reason(number, name)])
    part, _ = reason(number, name)
    first = next(one.name for one in failed if one.part == part)
    assert first == rejecting_step(number, name)
