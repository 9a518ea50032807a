"""A learner's progress: a folder for each exercise, with a file of its own, so that a damaged one affects no other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from ..results.files import write_whole
from .catalog import Exercise, exercises
from .grades import Grade, Step

FILE = ".progress.json"
DEFAULT = Path("learn")  # the learner's folder, in the current one


class Progress(msgspec.Struct, kw_only=True):
    """What a learner has done in one exercise."""

    version: int  # of the exercise when it was started
    started: float  # seconds since 1970
    touched: float
    hints: int = 0  # that were given
    gave_up: bool = False
    seconds: float = 0.0  # from the start to the first check with full points; 0: not yet
    steps: list[Step] = []  # of the last check
    best: dict[str, int] = {}  # points by part, the best of all checks
    pending: dict[str, int] = {}  # points by part that need a GPU


class Damaged(Exception):
    """A progress file that cannot be read; the message says what to do."""


def folder_of(exercise: Exercise, home: Path) -> Path:
    """Where the learner works on an exercise."""
    return home / exercise.folder


def home_folder(given: Path | None) -> Path:
    """The learner's folder: ``--folder``, else the one around the current folder, else ``learn``."""
    if given is not None:
        return given
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return folder.parent
        if any((folder / one.folder / FILE).is_file() for one in exercises().values()):
            return folder
    return Path(os.environ.get("ROWNORM_LEARN", DEFAULT))


def read(exercise: Exercise, home: Path) -> Progress | None:
    """The progress of one exercise; None if it was not started."""
    path = folder_of(exercise, home) / FILE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Progress)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Damaged(
            f"{path} cannot be read ({error}). Your files are not affected: remove {path.name} and run "
            f"rownorm learn start {exercise.number}, then check again"
        ) from None


def write(exercise: Exercise, home: Path, progress: Progress) -> None:
    """Write the progress of one exercise, whole or not at all."""
    progress.touched = time.time()
    text = msgspec.json.format(msgspec.json.encode(progress), indent=1)
    write_whole(folder_of(exercise, home) / FILE, text)


def start(exercise: Exercise, home: Path) -> tuple[list[str], list[str]]:
    """Copy the starter files that are missing. Returns (written, kept); nothing is overwritten."""
    folder = folder_of(exercise, home)
    written, kept = [], []
    for name, content in exercise.starter().items():
        path = folder / name
        if path.exists():
            kept.append(name)
            continue
        write_whole(path, content)
        written.append(name)
    known = read(exercise, home)
    now = time.time()
    progress = known or Progress(version=exercise.version, started=now, touched=now)
    if written:
        progress.version = exercise.version
    write(exercise, home, progress)
    return written, kept


def record(exercise: Exercise, home: Path, progress: Progress, grade: Grade) -> None:
    """Keep the result of a check. Points that were reached once are kept."""
    progress.steps = grade.steps
    for part in exercise.part:
        points = grade.points(part)
        progress.best[part.name] = max(points, progress.best.get(part.name, 0))
        waits = grade.status(part) == "pending" and not progress.best[part.name]
        progress.pending[part.name] = part.points if waits else 0
    complete = sum(progress.best.values()) + sum(progress.pending.values()) >= exercise.points
    if complete and not progress.seconds:
        progress.seconds = time.time() - progress.started
    write(exercise, home, progress)


def current(home: Path) -> Exercise | None:
    """The exercise of the current folder, else the one that was touched last."""
    here = Path.cwd().resolve()
    latest: tuple[float, Exercise] | None = None
    for exercise in exercises().values():
        folder = folder_of(exercise, home)
        if folder.exists() and here.is_relative_to(folder.resolve()):
            return exercise
        try:
            progress = read(exercise, home)
        except Damaged:
            continue
        if progress is not None and (latest is None or progress.touched > latest[0]):
            latest = (progress.touched, exercise)
    return latest[1] if latest else None
