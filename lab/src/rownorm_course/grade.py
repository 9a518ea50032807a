"""Grade an exercise, step by step. The learner's functions run in another process: see ``process`` and ``host``.

There are three modes: ``interpret`` runs kernels in Triton's interpreter on the CPU, ``gpu`` compiles and runs them on
the GPU, and ``compile`` compiles them for a GPU that need not be here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch

from .catalog import exercises
from .grades import Failure, GradedStep, Mode, Pending, Spent, Watcher
from .learner import Learner

GPU_REASON = "needs a GPU: check again on a machine with one. These points wait until then"
INTERPRETED_S = 30  # limit of a step in the interpreter; the solutions take less than a second


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


def tasks_of(number: int) -> list[Task]:
    """The steps of an exercise."""
    tasks: list[Task] = importlib.import_module(
        f"rownorm_course.checks.{exercises()[number].checks}"
    ).TASKS
    return tasks


def grade(
    learner: Learner,
    failed: Mapping[str, str] | None = None,
    only: Collection[str] = (),
    limit_s: float = 0.0,
    watcher: Watcher | None = None,
) -> Iterator[GradedStep]:
    """Run the steps of the learner's mode. After a failure the other steps of its part are skipped.

    So are the parts that need it; all others are graded. failed: by part, a step that has failed in another mode; only:
    these parts; limit_s: of one step that compiles or runs on a GPU, 0 is the exercise's; watcher: is told of a step
    that is running.
    """
    exercise, mode, watcher = exercises()[learner.number], learner.mode, watcher or Watcher()
    parts = {part.name: part for part in exercise.part}
    whole = limit_s or exercise.limit_s
    usual = min(INTERPRETED_S, whole) if mode == "interpret" else whole
    stopped = dict(failed or {})  # by part: the step that failed
    for task in tasks_of(learner.number):
        waits = task.modes == ("gpu",) and mode == "interpret" and not learner.gpu
        if mode not in task.modes and not waits:
            continue
        if only and task.part not in only:
            continue
        needed = task.part, *parts[task.part].after
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
        running = GradedStep(part=task.part, name=task.name, status="running", limit_s=limit)
        watcher.began(running, mode)
        learner.waiting = partial(watcher.waits, running)
        step = one_step(learner, task, limit)
        if step.status == "failed" and not parts[task.part].shares:
            stopped[task.part] = step.title
        yield step


def one_step(learner: Learner, task: Task, limit_s: float = INTERPRETED_S) -> GradedStep:
    """Run one step. Whatever the learner's code raises is a failed step."""
    made = GradedStep(part=task.part, name=task.name, status="failed")
    learner.begin_step(limit_s)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: further threads would only wait for each other
    try:
        made.message = task.function(learner) or ""
        made.status = "passed"
    except Failure as failure:
        made.message, made.habit = str(failure), failure.habit
    except Spent as spent:
        made.status, made.message, made.counts = "passed", str(spent), False
    except Pending as reason:
        made.status, made.message = "pending", str(reason)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        # A result that is not what the step can judge, such as a text where a number is expected.
        made.message = f"your function's result cannot be judged: {type(error).__name__}: {error}"
    finally:
        torch.set_num_threads(threads)
    if made.status == "failed":
        made.printed = learner.printed()
    return made
