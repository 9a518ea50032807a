"""Words for the terminal: the list of exercises, and the result of a check."""

from __future__ import annotations

import sys
from itertools import zip_longest
from pathlib import Path

import click

from rownorm_lab.data.tables import columns, shortened, wrapped
from rownorm_lab.data.texts import count

from . import progress
from .catalog import Exercise, exercises
from .grades import Grade, GradedStep, Mode, Watcher
from .habits import HABITS

MARKS = {"passed": "ok", "failed": "WRONG", "pending": "waits", "skipped": "-"}
PLACES = {"interpret": "", "gpu": ", on the GPU", "compile": ", compiled for sm_90"}
SHORT = 60  # characters of an explanation that stands beside the name of a step
LINES = 12  # that are shown of what the learner's code printed
LONG_S = 5  # after which a step that is still running is named where there is no terminal


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
        points, waits = (done.reached, done.waiting) if done else (0, 0)
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
    if done.reached + done.waiting >= one.points:
        return f"done, {done.waiting} wait" if done.waiting else "done"
    return "gave up" if done.gave_up else "started"


def _time(one: Exercise, done: progress.Progress | None) -> str:
    if done is None or not done.seconds:
        return f"{one.minutes} min"
    return f"{max(1, round(done.seconds / 60))} of {one.minutes} min"


class Display(Watcher):
    """Prints each step as it ends, by part; what is running now, on a line that is replaced."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self.heading = ""
        self.shown: dict[str, str] = {}  # step by message
        self.named = False  # whether the running step was named where there is no terminal
        self.status = ""  # the line that is replaced

    def began(self, step: GradedStep, mode: Mode) -> None:
        self._head(step, mode)
        self.named = False
        self.waits(step, 0.0)

    def waits(self, step: GradedStep, seconds: float) -> None:
        late = f" ({seconds:.0f} s of at most {step.limit_s:g})" if seconds >= 1 else ""
        status = shortened(f"    ...    {step.name}{late}", 79)
        if self.terminal and status != self.status:
            self.status = status
            click.echo(f"\r{status}\x1b[K", nl=False)
        elif not self.terminal and not self.named and seconds > LONG_S:
            self.named = True
            click.echo(f"    ...    {step.name}: still running, at most {step.limit_s:g} s")

    def ended(self, step: GradedStep, mode: Mode) -> None:
        if self.terminal:
            click.echo("\r\x1b[K", nl=False)
        self._head(step, mode)
        lines = self._explanation(step)
        short = len(lines) == 1 and len(lines[0]) <= SHORT
        lines = [f"{step.name} ({lines[0]})"] if short else [step.name, *lines]
        mark = MARKS[step.status] if step.counts else "none"
        for shown, line in zip_longest([mark], lines, fillvalue=""):
            click.echo(f"    {shown:5}  {line}".rstrip())

    def _head(self, step: GradedStep, mode: Mode) -> None:
        heading = f"  {step.part}{PLACES[mode]}"
        if heading != self.heading:
            self.heading = heading
            click.echo(heading)

    def _explanation(self, step: GradedStep) -> list[str]:
        """Why a step failed or has no result, what to do, and what the learner's code printed."""
        if not step.message:
            return []
        first = self.shown.setdefault(step.message, step.title)
        if first != step.title and len(step.message) > SHORT:
            return [f"the same message as above, at {first}"]
        lines = [part for line in step.message.splitlines() for part in wrapped(line, 0) or [""]]
        if step.habit and HABITS[step.habit]:
            lines += wrapped(f"Usual reason: {HABITS[step.habit]}", 0)
        if printed := step.printed.splitlines():
            rest = len(printed) - LINES
            lines += ["Your code printed:", *(f"    {line}" for line in printed[:LINES])]
            lines += [f"    and {count(rest, 'line')} more"] if rest > 0 else []
        return lines


def summary(grade: Grade, best: int) -> list[str]:
    """The points of each part, and of all. best: of all checks."""
    one = grade.exercise
    rows = []
    for part in one.part:
        status = grade.status(part)
        points = f"{grade.points(part)}/{part.points}"
        if status == "pending":
            points = f"{part.points} wait"
        if not grade.asked(part):
            points = "not graded"
        rows.append((part.name, part.about, points))
    waits = f"; {count(grade.pending, 'point')} wait for a GPU" if grade.pending else ""
    record = f" (best so far: {best})" if best > grade.total else ""
    return [
        "",
        *columns(("part", "", "points"), rows),
        "",
        f"{grade.total} of {one.points} points{record}{waits}",
    ]
