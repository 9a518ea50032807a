"""All chapters of a page. To add a kind, add a module with ``chapter(folders)`` and name it in ``KINDS``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from . import compiled, profiled, study, tuning
from .chapter import Chapter

# (folders) -> their chapter; None if they have nothing of this kind. ValueError if it cannot be read.
KINDS: tuple[Callable[[Sequence[Path]], Chapter | None], ...] = (
    study.chapter,
    profiled.chapter,
    compiled.chapter,
    compiled.own_chapter,
    tuning.study_chapter,
    tuning.chapter,
)


def chapters_of(paths: Sequence[Path]) -> list[Chapter]:
    """The chapters of those paths that are folders, in the order of the page."""
    folders = [path for path in paths if path.is_dir()]
    return [chapter for kind in KINDS if (chapter := kind(folders)) is not None]
