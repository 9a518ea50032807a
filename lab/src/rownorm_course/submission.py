"""``rownorm learn submit``: the learner's files and their scores, as a folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rownorm_lab.data.files import write_whole

from .catalog import Exercise
from .progress import Progress, handed_in

FOLDER = Path("submission")
SCORES = "scores.json"


class SubmittedPart(msgspec.Struct, kw_only=True):
    """Points of one part."""

    part: str
    points: int
    of: int
    best: int  # of all checks, of earlier files too
    waiting_for_a_gpu: int


class Scores(msgspec.Struct, kw_only=True):
    """scores.json: the points of the files beside it."""

    exercise: str
    points: int
    of: int
    best: int
    waiting_for_a_gpu: int
    hints: int
    gave_up: bool
    files: list[str]
    parts: list[SubmittedPart]


def scores_in(folder: Path) -> Scores | None:
    """The scores of a submission; None if the folder is none."""
    try:
        return msgspec.json.decode((folder / SCORES).read_bytes(), type=Scores)
    except (OSError, msgspec.DecodeError):
        return None


def write_submission(
    exercise: Exercise, home: Path, progress: Progress, out: Path
) -> tuple[Scores, list[str]]:
    """Copy the files and write the scores of the last check. Returns (scores, files that are missing).

    A submission of the same exercise in ``out`` is replaced.
    """
    folder, before = home / exercise.folder, scores_in(out)
    wanted = handed_in(exercise, home)
    present = [name for name in wanted if (folder / name).is_file()]
    missing = [name for name in wanted if name not in present]
    waiting = {step.part for step in progress.steps if step.status == "pending"}
    parts = [
        SubmittedPart(
            part=part.name,
            points=(points := progress.last.get(part.name, 0)),
            of=part.points,
            best=progress.best.get(part.name, 0),
            waiting_for_a_gpu=part.points if part.name in waiting and not points else 0,
        )
        for part in exercise.part
    ]
    scores = Scores(
        exercise=exercise.folder,
        points=sum(part.points for part in parts),
        of=exercise.points,
        best=sum(part.best for part in parts),
        waiting_for_a_gpu=sum(part.waiting_for_a_gpu for part in parts),
        hints=progress.hints,
        gave_up=progress.gave_up,
        files=present,
        parts=parts,
    )
    for name in present:
        write_whole(out / name, (folder / name).read_bytes())
    for name in set(before.files if before else ()) - set(present):
        (out / name).unlink(missing_ok=True)
    write_whole(out / SCORES, msgspec.json.format(msgspec.json.encode(scores), indent=1))
    return scores, missing
