"""A learner's progress: a folder for each exercise, with a file of its own, so that a damaged one affects no other."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rownorm_lab.data.files import write_whole

from .catalog import DISCUSSION, TEXT, Exercise, exercises
from .grades import Grade, GradedStep

FILE, LOCK = ".progress.json", ".progress.lock"
DEFAULT = Path("learn")  # the learner's folder, in the current one


class Progress(msgspec.Struct, kw_only=True):
    """What a learner has done in one exercise."""

    version: int  # of the exercise when it was started
    started: float  # seconds since 1970
    touched: float
    hints: int = 0  # that were given
    gave_up: bool = False
    tried: dict[str, list[str]] = {}  # wrong answers by question
    seconds: float = 0.0  # from the start to the first check with full points; 0: not yet
    steps: list[GradedStep] = []  # of the last check
    graded: dict[str, str] = {}  # the files of the last check: their digests
    last: dict[str, int] = {}  # points by part, of the last check
    best: dict[str, int] = {}  # the best of all checks
    pending: dict[str, int] = {}  # points by part that need a GPU

    @property
    def reached(self) -> int:
        """Points of all parts."""
        return sum(self.best.values())

    @property
    def waiting(self) -> int:
        """Points that wait for a GPU."""
        return sum(self.pending.values())


class Damaged(Exception):
    """A progress file that cannot be read; the message says what to do."""


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
    path = home / exercise.folder / FILE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Progress)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Damaged(
            f"{path} cannot be read ({error}). Your files are not affected: remove {path.name} and run "
            f"rownorm learn start {exercise.number}, then check again"
        ) from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One command at a time changes the progress in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def change(
    exercise: Exercise,
    home: Path,
    edit: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Read the progress, or begin it, edit it, and write it, whole or not at all."""
    folder = home / exercise.folder
    with _locked(folder):
        now = time.time()
        new = Progress(version=exercise.version, started=now, touched=now)
        progress = read(exercise, home) or new
        edit(progress)
        progress.touched = now
        text = msgspec.json.format(msgspec.json.encode(progress), indent=1)
        write_whole(folder / FILE, text)
    return progress


def digests(exercise: Exercise, home: Path) -> dict[str, str]:
    """The learner's files that are graded, with their SHA-256."""
    folder = home / exercise.folder
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in handed_in(exercise, home)
        if (folder / name).is_file() and name != DISCUSSION
    }


def handed_in(exercise: Exercise, home: Path) -> list[str]:
    """The names of the files that a learner writes or makes, those that others import among them."""
    expected = [name for name in (*exercise.right(), *exercise.makes) if name != TEXT]
    folder = home / exercise.folder
    own = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
    # Neither caches nor the course's own files.
    shown = [
        one for one in own if not any(part[0] == "." or part == "__pycache__" for part in one.parts)
    ]
    names = [one.as_posix() for one in shown]
    return expected + [
        name for name in names if name not in (TEXT, *expected) and not exercise.is_given(name)
    ]


def start(exercise: Exercise, home: Path) -> tuple[list[str], list[str]]:
    """Copy the starter files that are missing. Returns (written, kept); nothing is overwritten."""
    folder = home / exercise.folder
    written, kept = [], []
    for name, content in exercise.starter().items():
        path = folder / name
        if path.exists():
            kept.append(name)
            continue
        write_whole(path, content)
        written.append(name)

    def renew(progress: Progress) -> None:
        if written:
            progress.version = exercise.version

    change(exercise, home, renew)
    return written, kept


def record(
    exercise: Exercise,
    home: Path,
    grade: Grade,
    graded: dict[str, str],
    tried: dict[str, list[str]] | None = None,
) -> Progress:
    """Keep the result of a check of the files ``graded``. Points that were reached once are kept.

    After a partial check the files count as not graded, so that a submission grades them.
    """
    if grade.partial:
        graded = {}

    def keep(progress: Progress) -> None:
        same = progress.graded == graded
        progress.steps, progress.graded = grade.steps, graded
        progress.tried |= tried or {}
        for part in exercise.part:
            points, status = grade.points(part), grade.status(part)
            if status == "pending" and same:  # the same files may have been graded on a GPU before
                points = max(points, progress.last.get(part.name, 0))
            progress.last[part.name] = points
            best = progress.best[part.name] = max(points, progress.best.get(part.name, 0))
            if status == "pending" and not best:
                progress.pending[part.name] = part.points
            elif best or status == "failed":
                progress.pending[part.name] = 0
        complete = progress.reached + progress.waiting >= exercise.points
        if complete and not progress.seconds:
            progress.seconds = time.time() - progress.started

    return change(exercise, home, keep)


def next_new(home: Path, after: int = -1) -> Exercise | None:
    """The first exercise after number ``after`` that was not started."""
    for exercise in exercises().values():
        if exercise.number > after and not (home / exercise.folder / FILE).exists():
            return exercise
    return None


def current(home: Path) -> Exercise | None:
    """The exercise of the current folder, else the one that was touched last."""
    here = Path.cwd().resolve()
    latest: tuple[float, Exercise] | None = None
    for exercise in exercises().values():
        folder = home / exercise.folder
        if folder.exists() and here.is_relative_to(folder.resolve()):
            return exercise
        try:
            progress = read(exercise, home)
        except Damaged:
            continue
        if progress is not None and (latest is None or progress.touched > latest[0]):
            latest = (progress.touched, exercise)
    return latest[1] if latest else None
