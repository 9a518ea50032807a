"""The section on compiled kernels: what ``rownorm analyze --out FOLDER`` saved in the folder of a report's records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from ..analyze.figures import findings, table
from ..analyze.records import Analysis
from ..analyze.saved import FILE, read
from ..results.records import FILE as RECORDS


def section(analyses: Sequence[Analysis]) -> str:
    """A table for each case and target; nothing without analyses."""
    if not analyses:
        return ""
    found = groupby(analyses, key=lambda one: (one.case.title, one.device, one.target))
    parts = "".join(_table(title, list(group)) for title, group in found)
    return (
        '<section id="compiled"><h2>Compiled kernels</h2><p class="how">From <code>rownorm analyze</code>, without '
        "running them. <em>compiler</em>: read from the compiled code. <em>derived</em>: from its addresses and the "
        f"limits of the device. <em>measured</em>: timed on a GPU.</p>{parts}</section>"
    )


def saved_in(paths: Iterable[Path]) -> list[Analysis]:
    """The analyses in the folders of a report's records; ValueError if one cannot be read."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    return [one for folder in folders for one in read(folder)]


def has_only_analyses(path: Path) -> bool:
    """Whether a folder has analyses but no records."""
    return path.is_dir() and (path / FILE).exists() and not (path / RECORDS).exists()


def _table(title: tuple[str, str, str], analyses: list[Analysis]) -> str:
    case, device, target = title
    header, lines = table(analyses)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr><th>{escape(line[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in line[1:])}</tr>"
        for line in lines
    )
    said = "".join(f"<p>{escape(one)}</p>" for one in findings(analyses))
    return (
        f"<h3>{escape(case)} on {escape(device)} ({escape(target)})</h3>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{said}'
    )
