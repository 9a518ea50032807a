"""Running the work in a process of its own, alone or under a program that profiles it, and reading what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.profiles import ToolResult
from .request import ProfileRequest

GRACE_S = 30.0


class Ran(NamedTuple):
    """A process that has ended. log: what it printed."""

    status: int
    log: Path


def work_command(tool: str, folder: Path) -> list[str]:
    """The command that does the work of a folder's request."""
    return [sys.executable, "-m", "rownorm_lab.commands.profile.work", str(folder), tool]


def recorded(
    tool: str, request: ProfileRequest, folder: Path, file_of: dict[str, str]
) -> ToolResult:
    """Do the work while ``tool`` records inside the process. file_of: by subject, what it writes."""
    ran = run(work_command(tool, folder), folder / f"{tool}.log")
    files = [file_of[one] for one in request.subjects if (folder / file_of[one]).exists()]
    if ran.status:
        return ToolResult(tool, "failed", failure(ran), files)
    return ToolResult(tool, "ok", files=files)


def run(command: Sequence[str], log: Path) -> Ran:
    """Run a command; its output replaces ``log``. After Ctrl-C the process has time to write what it recorded."""
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process,
    ):
        try:
            return Ran(process.wait(), log)
        except KeyboardInterrupt:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def failure(ran: Ran) -> str:
    """Why a process failed: the last line that it printed, and where the rest is."""
    lines = [line for line in ran.log.read_text(errors="replace").splitlines() if line.strip()]
    ended = f"its process ended with status {ran.status}"
    if ran.status < 0:
        ended = f"its process was ended by signal {-ran.status}"
    return f"{lines[-1].strip()[:300] if lines else ended}; see {ran.log.name}"


def read_json(file: Path) -> Any:
    """What a tool wrote. ValueError, with the reason, if it is cut off or no JSON."""
    text = file.read_text(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is cut off, or no JSON: {error.msg} at character {error.pos} of {len(text)}"
        ) from None
