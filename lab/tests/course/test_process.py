"""The learner's process: what it has, what it refuses, and what it leaves in the grader's."""

import os

import click
import pytest
import torch

from lab_support.learning import put
from rownorm_course import process
from rownorm_course.grade import one_step, tasks_of
from rownorm_course.grades import Failure
from rownorm_course.learner import Learner
from rownorm_course.process import Ended

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="for the interpreter; test_gpu.py is for a GPU"
)
SECRET = ("judge", "checks", "alternatives", "profiles", "grade", "run", "learner", "habits")
LOOK = """
import importlib, sys, time

def modules():
    return sorted(name for name in sys.modules if name.startswith("rownorm"))

def imported(name):
    try:
        importlib.import_module(name)
    except PermissionError as error:
        return str(error)
    return "imported"

def crossing(values):
    return values

def raises():
    raise SystemExit(3)

def sleeps(seconds):
    time.sleep(seconds)
    return seconds
"""


@pytest.fixture
def learner(tmp_path):
    (tmp_path / "look.py").write_text(LOOK)
    with Learner(tmp_path, 2, "interpret", 11) as made:
        yield made


def test_it_holds_nothing_of_the_grader(learner):
    names = learner.function("look.py", "modules")()
    assert "rownorm_course.observe" in names
    for secret in SECRET:
        assert f"rownorm_course.{secret}" not in names
        answer = learner.function("look.py", "imported")(f"rownorm_course.{secret}")
        assert "not read from a solution" in answer
    assert "rownorm" not in names
    assert "not imported from a solution" in learner.function("look.py", "imported")("rownorm")


def test_on_a_gpu_every_process_is_a_new_program(tmp_path):
    """PyTorch refuses CUDA in a fork of a process that has counted the GPUs. Values without tensors need no GPU."""
    source = "import os, sys\n\ndef told(x):\n    return [x, os.getpid(), sys.orig_argv]\n"
    (tmp_path / "look.py").write_text(source)
    with Learner(tmp_path, 2, "gpu", 11) as made:
        made.begin_step(120)  # it imports torch
        value, process, command = made.function("look.py", "told")(7)
    assert value == 7
    assert "begin" in command
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_values_cross_as_they_are(learner):
    x = torch.randn(4, 6, dtype=torch.bfloat16)[:, 1:4].requires_grad_()
    given = [1, -2.5, None, "a", (True, [2]), {"b": 3, 4: (5,)}, float("inf"), 1 << 80, x]
    got = learner.function("look.py", "crossing")(given)
    assert got[:-1] == given[:-1]
    assert torch.equal(got[-1], x)
    assert got[-1].dtype == torch.bfloat16


def test_a_busy_machine_fails_no_step(learner, monkeypatch):
    """The limit is of processor time. A process that waits is stopped too, later."""
    sleeps = learner.function("look.py", "sleeps")
    assert sleeps(0) == 0
    learner.begin_step(0.3)
    assert sleeps(1) == 1
    monkeypatch.setattr(process, "PATIENCE", 2)
    learner.begin_step(0.3)
    with pytest.raises(Ended, match=r"within 1 s and was stopped in look\.py"):
        sleeps(100)
    learner.begin_step(30)
    assert sleeps(0) == 0


def test_an_exit_is_the_learners_error(learner):
    with pytest.raises(Failure, match="ended the process: exit status 3"):
        learner.function("look.py", "raises")()


def test_grading_leaves_the_interpreter_of_this_process(tmp_path):
    """It is mended for bf16 in the learner's process only: kernels of other tests run in this one."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    before = dict(vars(builder)), interpreter.GridExecutor.__call__, interpreter.ReduceOps.apply
    with Learner(put(tmp_path, 2), 2, "interpret", 11) as learner:
        dtypes = next(task for task in tasks_of(2) if task.name == "16-bit rows")
        assert one_step(learner, dtypes).status == "passed"
    after = dict(vars(builder)), interpreter.GridExecutor.__call__, interpreter.ReduceOps.apply
    assert before == after


def test_grading_leaves_the_interpreter_of_this_process_as_it_was(tmp_path):
    """Its arithmetic is mended in the learner's process only."""
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    owners = (interpreter.InterpreterBuilder, interpreter.ReduceOps, interpreter.GridExecutor)
    before = [dict(vars(one)) for one in (*owners, libdevice)]
    with Learner(put(tmp_path, 2), 2, "interpret", 11) as rms_norm:
        (task,) = (one for one in tasks_of(2) if one.name == "16-bit rows")
        assert one_step(rms_norm, task).status == "passed"
    assert [dict(vars(one)) for one in (*owners, libdevice)] == before


def test_a_process_that_does_not_begin_is_a_sentence(tmp_path, monkeypatch):
    """On a machine that is too busy. Its late answer is not taken for that of another one."""
    process.close()
    monkeypatch.setattr(process, "START_S", 0.001)
    with pytest.raises(click.ClickException, match="Nothing was graded; check again"):
        process.LearnerProcess("interpret", tmp_path, False)
    assert process.started() == set()
