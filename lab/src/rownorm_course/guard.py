"""What the learner's process refuses: the grader's files, other programs; and what in it was replaced.

It shares memory with the learner's code, so it is no sandbox.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch


class Refused(PermissionError):
    """What a solution does not do in the learner's process; habit: see ``GradedStep``."""

    def __init__(self, message: str, habit: str) -> None:
        super().__init__(message)
        self.habit = habit


PACKAGE = os.path.realpath(Path(__file__).parent)
FOR_LEARNERS = ("__init__", "interpreter", "measured", "grades", "catalog")  # modules of the course
OWN = ("rownorm_course.", "rownorm_lab.")
COMPARISONS = ("equal", "allclose", "isfinite", "empty", "full")  # of torch
READS = {"open", "os.listdir", "os.scandir", "shutil.copyfile"}
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"}


class Guard:
    """Made before the learner's files are imported."""

    def __init__(self) -> None:
        self.before = _functions()

    def changed(self) -> str:
        """The first function that was replaced; empty if none was."""
        now = _functions()
        return next((name for name, code in self.before.items() if now.get(name) is not code), "")


def _functions() -> dict[str, object]:
    """The code of every function of the modules that watch, and torch's comparisons."""
    found: dict[str, object] = {f"torch.{name}": getattr(torch, name) for name in COMPARISONS}
    for name, module in list(sys.modules.items()):
        if name.startswith(OWN) and isinstance(module, ModuleType):
            for key, value in list(vars(module).items()):
                if isinstance(value, FunctionType):
                    found[f"{name}.{key}"] = value.__code__
                elif isinstance(value, type) and value.__module__ == name:
                    for inner, method in list(vars(value).items()):
                        if isinstance(method, FunctionType):
                            found[f"{name}.{key}.{inner}"] = method.__code__
    return found


def refuse_files(library: bool) -> None:
    """From now on files of the grader are not opened, nor those of rownorm's norms unless ``library``.

    An audit hook: nothing can remove it.
    """
    spec = importlib.util.find_spec("rownorm")
    known = library or "rownorm" in sys.modules
    norms = "" if known or spec is None or spec.origin is None else _folder(spec.origin)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in READS or not arguments:
            return
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return
        place = os.path.realpath(os.fsdecode(path))
        if place.startswith(PACKAGE) and not _is_for_learners(Path(place).relative_to(PACKAGE)):
            raise Refused("the grader's own files are not read from a solution", "reads-solution")
        if norms and place.startswith(norms):
            raise Refused("rownorm is not imported from a solution", "imports-norm")

    sys.addaudithook(hook)


def _folder(file: str) -> str:
    return os.path.realpath(Path(file).parent) + os.sep


def _is_for_learners(path: Path) -> bool:
    """Modules that a learner's files import, and what ``rownorm learn start`` has copied."""
    if path.parts[:1] == ("exercises",):
        return "solutions" not in path.parts and "checks" not in path.parts
    return path.name.split(".")[0] in FOR_LEARNERS and path.parts[0] != "checks"


def refuse_programs() -> None:
    """From now on this process starts no other."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            raise Refused(f"{event} was called", "starts-program")

    sys.addaudithook(hook)
