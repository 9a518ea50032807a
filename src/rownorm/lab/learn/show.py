"""Words for the terminal: the list of exercises, and the result of a check."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..cli.tables import columns, wrapped
from ..texts import count
from . import progress
from .catalog import Exercise, exercises
from .grades import Grade, Step
from .habits import HABITS

MARKS = {"passed": "ok", "failed": "WRONG", "pending": "waits", "skipped": "-"}


def listing(home: Path) -> list[str]:
    """One line for each exercise: what it is, how far the learner is, points, time."""
    lines, reached, waiting = [], 0, 0
    problems = []
    for one in exercises().values():
        try:
            done = progress.read(one, home)
        except progress.Damaged as error:
            problems.append(str(error))
            lines.append(
                (f"{one.number}", one.title, "unreadable", f"?/{one.points}", f"{one.minutes} min")
            )
            continue
        points = sum(done.best.values()) if done else 0
        waits = sum(done.pending.values()) if done else 0
        reached, waiting = reached + points, waiting + waits
        shown = f"{points}/{one.points}" + (f", {waits} wait for a GPU" if waits else "")
        lines.append((f"{one.number}", one.title, _state(one, done), shown, _time(one, done)))
    total = sum(one.points for one in exercises().values())
    later = f", {waiting} wait for a GPU" if waiting else ""
    return [
        *columns(("", "exercise", "", "points", "time"), lines),
        "",
        f"{reached} of {total} points{later}. Folder: {home}",
        *problems,
    ]


def _state(one: Exercise, done: progress.Progress | None) -> str:
    if done is None:
        return "new"
    if sum(done.best.values()) + sum(done.pending.values()) >= one.points:
        return "done"
    return "gave up" if done.gave_up else "started"


def _time(one: Exercise, done: progress.Progress | None) -> str:
    if done is None or not done.seconds:
        return f"{one.minutes} min"
    return f"{max(1, round(done.seconds / 60))} of {one.minutes} min"


def step_lines(step: Step) -> list[str]:
    """One step: its name and, if it failed or waits, why and what to do."""
    lines = [f"  {MARKS[step.status]:5}  {step.part}: {step.name}"]
    if step.status in ("failed", "pending") and step.message:
        for line in step.message.splitlines():
            lines += [f"         {part}" for part in wrapped(line, 0) or [""]]
    if step.habit:
        lines += [f"         {part}" for part in wrapped(f"Usual reason: {HABITS[step.habit]}", 0)]
    return lines


def summary(grade: Grade) -> list[str]:
    """The points of each part, and what to do next."""
    one = grade.exercise
    rows = []
    for part in one.part:
        status = grade.status(part)
        points = (
            f"{part.points} wait" if status == "pending" else f"{grade.points(part)}/{part.points}"
        )
        rows.append((part.name, part.about, points))
    waits = f"; {count(grade.pending, 'point')} wait for a GPU" if grade.pending else ""
    return [
        "",
        *columns(("part", "", "points"), rows),
        "",
        f"{grade.total} of {one.points} points{waits}",
    ]


def finished(steps: Iterable[Step]) -> bool:
    """Whether nothing is left to do here."""
    return all(step.status in ("passed", "pending") for step in steps)
