"""The result of ``rownorm race`` for a terminal."""

from __future__ import annotations

import linecache
from pathlib import Path

from ...data.tables import columns, wrapped
from ...data.texts import count
from ...interpreter.findings import Finding, RecordedLaunch, Recording, Run
from ...interpreter.picture import picture

HEADER = ("launch", "kernel", "programs", "tensor", "elements", "read", "by", "written", "by")
MOST_RUNS = 12  # lines of the map for one tensor


def lines(title: str, recording: Recording, show_map: bool) -> list[str]:
    """The table of launches, the map if it is asked for, the findings."""
    rows = [row for launch in recording.launches for row in _rows(launch)]
    text = [
        f"{title}: {count(len(recording.launches), 'launch').replace('launchs', 'launches')}",
        "",
    ]
    text += columns(HEADER, rows)
    if show_map:
        for launch in recording.launches:
            text += ["", f"Who wrote what: launch {launch.number}, {launch.kernel}", *_map(launch)]
            text += ["", *picture(launch)]
    text.append("")
    if not recording.findings:
        return [*text, "Nothing was found."]
    text.append(f"{count(len(recording.findings), 'finding')}:")
    for finding in recording.findings:
        text += _finding(finding)
    return text


def _rows(launch: RecordedLaunch) -> list[tuple[str, ...]]:
    programs = " x ".join(map(str, launch.grid)).removesuffix(" x 1").removesuffix(" x 1")
    begin = (str(launch.number), launch.kernel, programs + (" (some)" if launch.sampled else ""))
    uses = [
        (
            use.tensor,
            f"{use.elements:,}",
            f"{use.read:,}",
            str(use.readers or ""),
            f"{use.written:,}" + (f", {use.atomics:,} by atomics" if use.atomics else ""),
            str(use.writers or ""),
        )
        for use in launch.uses
    ] or [("addresses only", "", "", "", "", "")]
    return [(*(begin if place == 0 else ("", "", "")), *cells) for place, cells in enumerate(uses)]


def _map(launch: RecordedLaunch) -> list[str]:
    found = []
    for use in launch.uses:
        if use.runs:
            found.append(f"  {use.tensor}")
            found += [f"    {words(run)}" for run in use.runs[:MOST_RUNS]]
            found += ["    ..."] if len(use.runs) > MOST_RUNS else []
    return found


def words(run: Run) -> str:
    """A run in words."""
    who = " and ".join(map(str, run.programs))
    race = "   RACE" if len(run.programs) > 1 else ""
    return f"{run.first} to {run.last}: program{'s' if race else ''} {who}{race}"


def _finding(finding: Finding) -> list[str]:
    found = [f"  {line}" for line in wrapped(str(finding), 4)]
    for site in dict.fromkeys(finding.sites):
        source = linecache.getline(site.file, site.line).strip()
        found.append(f"      {Path(site.file).name}, line {site.line}: {source}")
    return found
