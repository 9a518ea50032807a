"""The process that grades: ``python -m rownorm_course.grade FD EXERCISE``, a ``GradingRequest`` on its input.

It imports the learner's files. Steps are written as soon as they are known, one line of JSON each, to the pipe FD: a
process that crashes or never ends leaves the steps before, and the name of the one that it was in. Every line begins
with the request's nonce, and the last one is the nonce alone: what else is written there does not count, and a process
that ends without the last line has not graded.

There are three modes: ``interpret`` runs kernels in Triton's interpreter on the CPU, ``gpu`` compiles and runs them on
the GPU, and ``compile`` compiles them for a GPU that need not be here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from .catalog import exercises
from .grades import Failure, GradedStep, Pending
from .guard import Guard
from .learner import Learner

Mode = Literal["interpret", "gpu", "compile"]
GPU_REASON = "needs a GPU: check again on a machine with one. These points wait until then"
INTERPRETED_S = 30  # limit of a step in the interpreter; the solutions take less than a second
PRINTED = 4000  # characters that are kept of what a step prints


class Task(NamedTuple):
    """One step of grading. modes: where it runs; a task that only runs on a GPU is pending without one.

    limit_s: 0 is ``INTERPRETED_S`` in the interpreter, else the exercise's. What the function returns is shown although
    the step has passed.
    """

    part: str
    name: str
    function: Callable[[Learner], str | None]
    modes: tuple[Mode, ...] = ("interpret", "gpu")
    limit_s: float = 0.0


class GradingRequest(msgspec.Struct, kw_only=True):
    """What a grading process does."""

    exercise: int
    nonce: str
    folder: str
    out: str  # folder for the files below
    mode: Mode
    seed: int
    limit_s: float  # the exercise's
    gpu: bool = False  # whether another process will run the steps that need one
    failed: dict[str, str] = {}  # step that has failed already, by part
    done: list[
        tuple[str, str]
    ] = []  # (part, name) of steps that another process of this mode ended
    parts: list[str] = []  # that are graded; none: all
    fail_fast: bool = False  # nothing is tried after a failure

    @property
    def printed(self) -> Path:
        """What the running step has printed."""
        return Path(self.out, "printed")

    @property
    def stack(self) -> Path:
        """Where the process was when SIGUSR1 came."""
        return Path(self.out, "stack")


def tasks_of(number: int) -> list[Task]:
    """The steps of an exercise."""
    tasks: list[Task] = importlib.import_module(
        f"rownorm_course.checks.{exercises()[number].checks}"
    ).TASKS
    return tasks


def grade(
    learner: Learner,
    mode: Mode,
    failed: Mapping[str, str] | None = None,
    done: Collection[tuple[str, str]] = (),
    printed: Path | None = None,
    limit_s: float = INTERPRETED_S,
    only: Collection[str] = (),
    fail_fast: bool = False,
) -> Iterator[GradedStep]:
    """Run the steps of one mode. After a failure the other steps of its part are skipped.

    A step is yielded twice: when it begins, with the status "running", and when it has ended. failed, done: see
    GradingRequest; printed: a file for what the running step prints; limit_s: the exercise's; only: these
    parts; fail_fast: after a failure, the steps of other parts are skipped too.
    """
    parts = {part.name: part for part in exercises()[learner.number].part}
    usual = min(INTERPRETED_S, limit_s) if mode == "interpret" else limit_s
    stopped = dict(failed or {})  # by part: the step that failed
    for task in tasks_of(learner.number):
        waits = task.modes == ("gpu",) and mode == "interpret" and not learner.gpu
        if (mode not in task.modes and not waits) or (task.part, task.name) in done:
            continue
        if only and task.part not in only:
            continue
        needed = stopped if fail_fast else (task.part, *parts[task.part].after)
        causes = [stopped[part] for part in needed if part in stopped]
        if causes:
            stopped.setdefault(task.part, causes[0])
            why = f"not tried, because {causes[0]} failed"
            yield GradedStep(part=task.part, name=task.name, status="skipped", message=why)
            continue
        if waits:
            yield GradedStep(part=task.part, name=task.name, status="pending", message=GPU_REASON)
            continue
        limit = task.limit_s or usual
        yield GradedStep(part=task.part, name=task.name, status="running", limit_s=limit)
        step = one_step(learner, task, printed)
        if step.status == "failed" and not parts[task.part].shares:
            stopped[task.part] = step.title
        yield step


class _Printed(io.TextIOBase):
    """The beginning of what a step prints, also in a file, which survives the process."""

    def __init__(self, path: Path | None) -> None:
        self.text = ""
        self.file = path.open("w", encoding="utf-8") if path else None

    def write(self, text: str) -> int:
        kept = text[: PRINTED - len(self.text)]
        self.text += kept
        if self.file and kept:
            self.file.write(kept)
            self.file.flush()
        return len(text)

    def close(self) -> None:
        if self.file:
            self.file.close()


def one_step(learner: Learner, task: Task, printed: Path | None = None) -> GradedStep:
    """Run one step. Whatever the learner's code raises is a failed step."""
    made = GradedStep(part=task.part, name=task.name, status="failed")
    with contextlib.closing(_Printed(printed)) as out, contextlib.redirect_stdout(out):
        try:
            made.message = task.function(learner) or ""
            made.status = "passed"
        except Failure as failure:
            made.message, made.habit = str(failure), failure.habit
        except Pending as reason:
            made.status, made.message = "pending", str(reason)
        except NotImplementedError as error:
            made.message = f"still to write: {error}"
        except SystemExit as error:
            made.message = f"your code ended the process: exit status {error.code}"
        except Exception as error:
            made.message = explained(error, learner.folder)
        made.printed = out.text if made.status == "failed" else ""
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
    """Grade what the input asks for."""
    import numpy

    from .interpreter import DEVICE

    numpy.seterr(
        all="ignore"
    )  # the interpreter computes in numpy; overflow is the learner's to find
    guard = Guard(tasks_of(int(sys.argv[2])))  # imports torch, Triton and the checks
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=GradingRequest)
    begin = request.nonce.encode()
    with request.stack.open("w") as stack, open(int(sys.argv[1]), "wb", buffering=0) as out:
        faulthandler.register(signal.SIGUSR1, stack)
        learner = Learner(Path(request.folder), request.exercise, DEVICE, request.seed, request.gpu)
        for step in grade(
            learner,
            request.mode,
            request.failed,
            request.done,
            request.printed,
            request.limit_s,
            request.parts,
            request.fail_fast,
        ):
            if step.status == "passed" and (changed := guard.changed()):
                step.status, step.habit = "failed", "patches-grader"
                step.message = f"{changed} is not what it was when grading began"
            out.write(begin + msgspec.json.encode(step) + b"\n")
        out.write(begin + b"\n")
        faulthandler.unregister(signal.SIGUSR1)


if __name__ == "__main__":
    main()
