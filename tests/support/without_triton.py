"""A new process in which Triton cannot be imported, as on macOS and Windows."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Python's finder of modules, without Triton. It runs first in each new process.
WITHOUT_TRITON = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] == "triton" else find(name, *rest)
"""


def run(code_or_arguments, tmp_path, triton=True):
    """(exit status, what it prints) of a program or of the command line in a new process."""
    (tmp_path / "sitecustomize.py").write_text("" if triton else WITHOUT_TRITON)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sources = (str(ROOT / "src"), str(ROOT / "lab" / "src"))
    path = os.pathsep.join([str(tmp_path), *sources, *filter(None, given)])
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    is_code = isinstance(code_or_arguments, str)
    arguments = ["-c", code_or_arguments] if is_code else ["-m", "rownorm_lab", *code_or_arguments]
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=environment | {"PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout
