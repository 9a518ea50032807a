"""What grading says: steps with a status, and the points of parts. Importing it needs neither torch nor Triton."""

from __future__ import annotations

from typing import Literal

import msgspec

from .catalog import Exercise, ExercisePart

Mode = Literal["interpret", "gpu", "compile"]  # where kernels run
Status = Literal["passed", "failed", "pending", "skipped", "running"]
LEFT_OUT = "not asked for"  # the message of a skipped step of a part that a check leaves out


class GradedStep(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One check. habit: the name of the mistake that usually causes it, a key of ``habits.HABITS``."""

    part: str
    name: str
    status: Status
    message: str = ""
    habit: str = ""
    printed: str = ""  # by the learner's code, if it failed
    counts: bool = True  # False: passed, without points
    limit_s: float = 0.0  # of a step that is running

    @property
    def title(self) -> str:
        return f"{self.part}: {self.name}"


class Failure(Exception):
    """A step that failed: what was expected and what came; habit: see GradedStep."""

    def __init__(self, message: str, habit: str = "") -> None:
        super().__init__(message)
        self.habit = habit


class Spent(Exception):
    """A step that is over and has no points: its answers were used up. The message is the explanation."""


class Pending(Exception):
    """A step that cannot be done here, with the reason; its points wait."""


class Grade(msgspec.Struct, kw_only=True):
    """The result of one check of an exercise."""

    exercise: Exercise
    steps: list[GradedStep]
    partial: bool = False  # not everything was asked for

    def status(self, part: ExercisePart) -> Status:
        """Failed if a step failed, else pending if one waits, else passed."""
        found = {step.status for step in self.steps if step.part == part.name}
        for status in ("failed", "pending", "skipped"):
            if status in found:
                return status  # type: ignore[return-value]
        return "passed" if found else "skipped"

    def asked(self, part: ExercisePart) -> bool:
        """Whether the check was of this part, too."""
        return any(step.part == part.name and step.message != LEFT_OUT for step in self.steps)

    def points(self, part: ExercisePart) -> int:
        """All points or none; of a part that shares them among its steps, those of the steps that passed."""
        if part.shares:
            steps = [step for step in self.steps if step.part == part.name]
            passed = sum(step.status == "passed" and step.counts for step in steps)
            return part.points * passed // max(1, len(steps))
        return part.points if self.status(part) == "passed" else 0

    @property
    def total(self) -> int:
        """Points that were reached."""
        return sum(self.points(part) for part in self.exercise.part)

    @property
    def pending(self) -> int:
        """Points that wait for a GPU."""
        return sum(part.points for part in self.exercise.part if self.status(part) == "pending")

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do on this machine."""
        return all(step.status in ("passed", "pending") for step in self.steps)


class Watcher:
    """Called during a check, for progress output. This base class prints nothing."""

    def began(self, step: GradedStep, mode: Mode) -> None:
        """A step is running."""

    def waits(self, step: GradedStep, seconds: float) -> None:
        """It has been running for that long."""

    def ended(self, step: GradedStep, mode: Mode) -> None:
        """A step has its result."""
