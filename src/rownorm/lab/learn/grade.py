"""The process that grades: ``python -m rownorm.lab.learn.grade REQUEST`` with a ``Request`` as JSON.

It imports the learner's files. Steps are written as soon as they are known, one line of JSON each, to the file that the
request names: a process that crashes or never ends leaves the steps before, and the name of the one that it was in.

There are three modes: ``interpret`` runs kernels in Triton's interpreter on the CPU, ``gpu`` compiles and runs them on
the GPU, and ``compile`` compiles them for a GPU that need not be here.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from .catalog import exercises
from .grades import Failure, Pending, Step
from .learner import Learner

Mode = Literal["interpret", "gpu", "compile"]
GPU_REASON = "needs a GPU: check again on a machine with one. These points wait until then"
RUNNING = "running"  # the message of a step that has begun


class Task(NamedTuple):
    """One step of grading. modes: where it runs; a task that only runs on a GPU is pending without one."""

    part: str
    name: str
    function: Callable[[Learner], None]
    modes: tuple[Mode, ...] = ("interpret", "gpu")


class Request(msgspec.Struct, kw_only=True):
    """What a grading process does."""

    exercise: int
    folder: str
    out: str
    mode: Mode
    seed: int
    gpu: bool = False  # whether another process will run the steps that need one
    skip: list[str] = []  # parts that have failed already


def tasks_of(number: int) -> list[Task]:
    """The steps of an exercise."""
    tasks: list[Task] = importlib.import_module(
        f"rownorm.lab.learn.checks.{exercises()[number].checks}"
    ).TASKS
    return tasks


def grade(
    learner: Learner, mode: Mode, skip: Sequence[str] = (), gpu: bool = False
) -> Iterator[Step]:
    """Run the steps of one mode. After a failure the other steps of its part are skipped."""
    stopped = set(skip)
    after = {part.name: part.after for part in exercises()[learner.number].part}
    for task in tasks_of(learner.number):
        waits = task.modes == ("gpu",) and mode == "interpret" and not gpu
        if mode not in task.modes and not waits:
            continue
        first = [part for part in after[task.part] if part in stopped]
        if task.part in stopped or first:
            why = f"mend {' and '.join(first)} first" if first else ""
            stopped.add(task.part)
            yield Step(part=task.part, name=task.name, status="skipped", message=why)
            continue
        if waits:
            yield Step(part=task.part, name=task.name, status="pending", message=GPU_REASON)
            continue
        yield Step(part=task.part, name=task.name, status="skipped", message=RUNNING)
        step = one_step(learner, task)
        if step.status == "failed":
            stopped.add(task.part)
        yield step


def one_step(learner: Learner, task: Task) -> Step:
    """Run one step. Whatever the learner's code raises is a failed step."""
    made = Step(part=task.part, name=task.name, status="passed")
    try:
        task.function(learner)
    except Failure as failure:
        made.status, made.message, made.habit = "failed", str(failure), failure.habit
    except Pending as reason:
        made.status, made.message = "pending", str(reason)
    except NotImplementedError as error:
        made.status, made.message = "failed", f"still to write: {error}"
    except SystemExit as error:
        made.status, made.message = (
            "failed",
            f"your code ended the process: exit status {error.code}",
        )
    except Exception as error:
        made.status, made.message = "failed", explained(error, learner.folder)
    return made


def explained(error: BaseException, folder: Path) -> str:
    """An error of the learner's code, with the last line of the learner's own file."""
    lines = [
        frame
        for one in _causes(error)
        for frame in traceback.extract_tb(one.__traceback__)
        if Path(frame.filename).is_relative_to(folder)
    ]
    last = _causes(error)[-1]
    text = f"{type(last).__name__}: {str(last).strip() or 'no message'}"
    text = "\n".join(text.splitlines()[:8])
    if lines:
        where = lines[-1]
        return f"{Path(where.filename).name}, line {where.lineno}: {text}\n    {where.line}"
    return text


def _causes(error: BaseException) -> list[BaseException]:
    found = [error]
    while (cause := found[-1].__cause__) is not None:
        found.append(cause)
    return found


def main() -> None:
    """Grade what the first argument asks for."""
    request = msgspec.json.decode(sys.argv[1], type=Request)
    device = "cuda" if request.mode == "gpu" else "cpu"
    learner = Learner(Path(request.folder), request.exercise, device, request.seed)
    with open(request.out, "ab", buffering=0) as out:
        for step in grade(learner, request.mode, request.skip, request.gpu):
            out.write(msgspec.json.encode(step) + b"\n")


if __name__ == "__main__":
    import numpy

    numpy.seterr(
        all="ignore"
    )  # the interpreter computes in numpy; overflow is the learner's to find
    main()
