"""Writing the files of a report."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..data.files import write_whole
from ..data.measurements import Results, results_of
from ..data.records import Record
from ..data.runs import is_taken
from .analysis import analysis
from .chapter import Chapter
from .excerpt import excerpt
from .page import page
from .plots import write_plots

PAGE = "report.html"
_PLOT = re.compile(
    r"(.+-)?(bandwidth|latency|speedup|host-cost|accuracy|roofline|study|blocks)(-.+)?\.png"
)


def is_plot(file: Path) -> bool:
    """Whether a report writes files of that name into ``plots``."""
    return _PLOT.fullmatch(file.name) is not None


def write_report(
    records: Sequence[Record],
    folder: Path,
    *,
    chapters: Sequence[Chapter] = (),
    damaged: Sequence[tuple[int, str]] = (),
    plots: bool = True,
    on_step: Callable[[str], None] = lambda _: None,
    remarks: Sequence[str] = (),
    addendum: str = "",
) -> list[Path]:
    """Write the report into ``folder`` and return its files.

    damaged: (line number, reason) of lines that could not be read. on_step: called with each step, in words, and with
    what a reader must know about the records. remarks: more sentences of that kind, for the page. addendum: Markdown
    at the end of ``analysis.md``.
    """
    on_step("computing")
    results = results_of(one for one in records if not one.case.setting)  # others are in a chapter
    written = []
    if results or not chapters:
        text = "\n".join(filter(None, (analysis(results, damaged), addendum)))
        written.append(write_whole(folder / "analysis.md", text))
    shown, left_out = excerpt(results)
    notes = [*remarks, *_notes(results), *filter(None, [left_out])]
    for note in notes:
        on_step(note)
    if plots:
        written += write_plots(shown, folder / "plots", on_step)
        drawn = (write(folder / "plots") for chapter in chapters for write in chapter.plots)
        written += filter(None, drawn)
    on_step("writing the page")
    return [write_whole(folder / PAGE, page(shown, damaged, notes, chapters)), *written]


def _notes(results: Sequence[Results]) -> list[str]:
    """The notes of each device; with several devices, each begins with the device."""
    several = len(results) > 1
    return [f"{one.device}: {note}" if several else note for one in results for note in one.notes]


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder. The report that the block writes there appears in ``folder``, in place of an old one.

    ValueError if ``folder`` holds other files but no report.
    """
    if is_taken(folder) and not (folder / PAGE).exists():
        raise ValueError(f"{folder} is not empty and holds no report; choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        temporary.chmod(0o755)
        yield temporary
        for old in filter(is_plot, folder.glob("plots/*")):
            old.unlink()
        with contextlib.suppress(OSError):  # it does not exist, or holds files of the user
            (folder / "plots").rmdir()
        for file in list(filter(Path.is_file, temporary.rglob("*"))):
            place = folder / file.relative_to(temporary)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
