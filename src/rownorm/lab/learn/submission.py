"""``rownorm learn submit``: the learner's files and their scores, as a folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..results.files import write_whole
from .catalog import TEXT, Exercise
from .progress import Progress, folder_of

DEFAULT = "solution"  # the FlashInfer-Bench exercise
SCORES = "scores.json"


def write_submission(
    exercise: Exercise, home: Path, progress: Progress, out: Path
) -> tuple[list[str], list[str]]:
    """Copy the files and write the scores. Returns (files written, files that are missing)."""
    folder = folder_of(exercise, home)
    names = [name for name in exercise.right() if name != TEXT]
    written, missing = [], []
    for name in names:
        path = folder / name
        if not path.is_file():
            missing.append(name)
            continue
        write_whole(out / name, path.read_bytes())
        written.append(name)
    scores = {
        "exercise": exercise.folder,
        "points": sum(progress.best.values()),
        "of": exercise.points,
        "waiting_for_a_gpu": sum(progress.pending.values()),
        "hints": progress.hints,
        "gave_up": progress.gave_up,
        "parts": [
            {
                "part": part.name,
                "points": progress.best.get(part.name, 0),
                "of": part.points,
                "waiting_for_a_gpu": progress.pending.get(part.name, 0),
            }
            for part in exercise.part
        ],
    }
    text = msgspec.json.format(msgspec.json.encode(scores), indent=1)
    write_whole(out / SCORES, text)
    return [*written, SCORES], missing
