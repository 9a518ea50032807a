"""A copy of the package with insertions, to see what follows from a change of the description in ``program``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rownorm

# By file, in ``src/rownorm``: after every occurrence of this text comes that text.
Edits = dict[str, list[tuple[str, str]]]


def run_in_copy(folder: Path, arguments: list[str], *edits: Edits, **environment: str) -> str:
    """What Python prints with these arguments, where ``rownorm`` is a copy with these edits."""
    source = Path(rownorm.__file__).parent
    shutil.copytree(source, folder / "rownorm", ignore=shutil.ignore_patterns("__pycache__", "lab"))
    for file, insertions in (pair for edit in edits for pair in edit.items()):
        path = folder / "rownorm" / file
        text = path.read_text()
        for anchor, added in insertions:
            assert anchor in text, f"{file} has no {anchor!r}"
            text = text.replace(anchor, anchor + added)
        path.write_text(text)
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
