"""The section on compiled kernels: what ``rownorm analyze --out FOLDER`` saved in the folder of a report's records."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from ..data.analyses import Analysis, read
from ..data.analysis_tables import findings, table
from .chapter import Chapter

HOW = (
    '<p class="how">From <code>rownorm analyze</code>, without running them. <em>compiler</em>: read from the compiled '
    "code. <em>derived</em>: from its addresses and the limits of the device. <em>measured</em>: timed on a GPU.</p>"
)


def chapter(folders: Sequence[Path]) -> Chapter | None:
    """The analyses in these folders, a table for each case and target; ValueError if one cannot be read."""
    found = {folder: read(folder) for folder in folders}
    analyses = [one for several in found.values() for one in several]
    if not analyses:
        return None
    grouped = groupby(analyses, key=lambda one: (one.case.title, one.device, one.target))
    return Chapter(
        "compiled",
        "Compiled kernels",
        HOW + "".join(_table(title, list(group)) for title, group in grouped),
        folders=[folder for folder, several in found.items() if several],
        devices=[one.device for one in analyses],
    )


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
