"""A guard in the grading process. It shares memory with the learner's code, so it is no sandbox.

Files of solutions cannot be opened there. A function or class of the grader, or of torch's comparisons, that is
replaced while it runs is noticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from .catalog import FOLDER

GRADERS = ("rownorm_course.", "rownorm_lab.")
COMPARISONS = ("equal", "allclose", "isfinite", "empty", "full")  # of torch


class Guard:
    """Made before the learner's files are imported. tasks: of the exercise, so that their checks are loaded."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        self.tasks = [(task, task.function.__code__) for task in tasks]
        self.before = _functions()
        sys.addaudithook(_refuse_solutions)

    def changed(self) -> str:
        """The first function that was replaced; empty if none was."""
        now = _functions()
        for name, code in self.before.items():
            if now.get(name) is not code:
                return name
        for task, code in self.tasks:
            if task.function.__code__ is not code:
                return f"the step {task.name!r}"
        return ""


def _functions() -> dict[str, object]:
    """The code of every function of the grader's modules, and torch's comparisons."""
    found: dict[str, object] = {f"torch.{name}": getattr(torch, name) for name in COMPARISONS}
    for name, module in list(sys.modules.items()):
        if name.startswith(GRADERS) and isinstance(module, ModuleType):
            for key, value in list(vars(module).items()):
                if isinstance(value, FunctionType):
                    found[f"{name}.{key}"] = value.__code__
                elif isinstance(value, type) and value.__module__ == name:
                    for inner, method in list(vars(value).items()):
                        if isinstance(method, FunctionType):
                            found[f"{name}.{key}.{inner}"] = method.__code__
    return found


def _refuse_solutions(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, which nothing can remove: solutions are not read in this process."""
    if event not in ("open", "os.listdir", "os.scandir", "shutil.copyfile"):
        return
    path = arguments[0] if arguments else None
    if isinstance(path, str | bytes | os.PathLike):
        place = Path(os.fsdecode(path))
        if "solutions" in place.parts and FOLDER in place.absolute().parents:
            raise PermissionError("rownorm learn solution shows solutions, after you have passed")
