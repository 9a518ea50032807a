"""Check a folder: every step of every mode, and the grade."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from .catalog import Exercise
from .grade import grade, tasks_of
from .grades import LEFT_OUT, Grade, GradedStep, Mode, Watcher
from .learner import Learner
from .process import spawner


def check(
    exercise: Exercise,
    folder: Path,
    watcher: Watcher | None = None,
    part: str = "",
    tried: dict[str, list[str]] | None = None,
) -> Grade:
    """Run the steps of every part, up to the first of it that fails.

    part: only this one, with those that it comes after. tried: wrong answers by question; this check adds its own.
    """
    watcher = watcher or Watcher()
    wanted = wanted_parts(exercise, part)
    modes = _modes(exercise, wanted)
    for mode in modes:
        spawner(mode)  # they import torch and Triton while this process does
    shares = {one.name for one in exercise.part if one.shares}
    found: dict[tuple[str, str], GradedStep] = {}
    for mode in modes:
        failed = {
            step.part: step.title
            for step in reversed(found.values())
            if step.status == "failed" and step.part not in shares
        }
        if all({one.name, *one.after} & failed.keys() for one in exercise.part):
            break  # nothing is left that another mode could grade
        for step in steps_of(exercise, folder, mode, failed, watcher, wanted, tried=tried):
            key = (step.part, step.name)
            known = found.get(key)
            if known is None or known.status == "passed":
                found[key] = step
                watcher.ended(step, mode)
    _add_missing(exercise, modes, wanted, found)
    return Grade(exercise=exercise, steps=list(found.values()), partial=bool(part))


def _modes(exercise: Exercise, wanted: Sequence[str]) -> list[Mode]:
    modes: list[Mode] = ["interpret"]
    if has_gpu():
        modes.append("gpu")
    if any("compile" in task.modes and task.part in wanted for task in tasks_of(exercise.number)):
        modes.append("compile")
    return modes


def steps_of(
    exercise: Exercise,
    folder: Path,
    mode: Mode,
    failed: dict[str, str],
    watcher: Watcher,
    parts: Sequence[str] = (),
    limit_s: float = 0.0,
    tried: dict[str, list[str]] | None = None,
) -> Iterator[GradedStep]:
    """The steps of one mode. failed, limit_s: see ``grade``; tried: see ``check``."""
    with Learner(folder, exercise.number, mode, secrets.randbelow(1 << 30), has_gpu()) as learner:
        learner.tried = {} if tried is None else tried
        yield from grade(learner, failed, parts, limit_s, watcher)


def wanted_parts(exercise: Exercise, part: str) -> list[str]:
    """The parts that are graded for ``part``: those that it comes after, and itself; all without one."""
    if not part:
        return [one.name for one in exercise.part]
    (chosen,) = (one for one in exercise.part if one.name == part)
    return [*chosen.after, part]


def _add_missing(
    exercise: Exercise,
    modes: list[Mode],
    wanted: list[str],
    found: dict[tuple[str, str], GradedStep],
) -> None:
    """Every step that was expected and not reported has failed, or was not tried after a failure."""
    failed = next((step.title for step in found.values() if step.status == "failed"), "")
    why = f"not tried, because {failed} failed" if failed else "it did not report a result"
    for task in tasks_of(exercise.number):
        key = (task.part, task.name)
        if key not in found and (task.part not in wanted or set(task.modes) & set(modes)):
            left_out = task.part not in wanted
            found[key] = GradedStep(
                part=task.part,
                name=task.name,
                status="skipped" if failed or left_out else "failed",
                message=LEFT_OUT if left_out else why,
            )


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()
