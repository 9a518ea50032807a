"""A user's script under a profiler.

Recording starts with the script. After the first step of an optimizer it is restarted, so that compilation and other
first calls are not in the result; after ``Script.steps`` more the script is ended. A script without an optimizer is
recorded from its start to its end.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...data.files import write_whole
from ...profilers.request import Script
from .hooks import norm_ranges
from .sessions import Session, session_of

FILE = "script.json"


class Outcome(msgspec.Struct, frozen=True):
    """How a script ended. steps: of an optimizer, that were recorded; 0: no optimizer, or it crashed in the first."""

    steps: int = 0
    error: str = ""  # of a script that crashed


class Enough(BaseException):
    """Ends a script whose steps have been recorded. Not an ``Exception``, which scripts catch."""


class Recorder:
    """Records the steps of a script."""

    def __init__(self, tool: str, folder: Path, limit: int) -> None:
        self.limit = limit
        self.steps = 0
        self.is_warm = limit == 0  # everything is wanted: nothing is forgotten
        self.session: Session = session_of(tool, folder, "script")
        self.session.__enter__()

    def after_step(self, *_: Any) -> None:
        """The hook of optimizers."""
        if not self.is_warm:
            self.session.restart()
            self.is_warm = True
            return
        self.steps += 1
        if self.steps == self.limit:
            raise Enough

    def stop(self) -> None:
        """Write what was recorded."""
        self.session.__exit__()


def run_script(script: Script, tool: str, folder: Path) -> int:
    """Run it as ``python path arguments`` does; returns its exit status. What was recorded before a crash is kept."""
    sys.argv = [script.path, *script.arguments]
    sys.path.insert(0, str(Path(script.path).resolve().parent))
    status, error = 0, ""
    recorder = Recorder(tool, folder, script.steps)
    hook = register_optimizer_step_post_hook(recorder.after_step)
    try:
        with norm_ranges() if tool == "chrome" else nullcontext():
            # Absolute as python's __file__, by which profilers find the source of kernels; runpy makes sys.argv[0]
            # the same.
            runpy.run_path(str(Path(script.path).absolute()), run_name="__main__")
    except Enough:
        pass
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        error = f"exit status {status}" if status else ""
    except BaseException as crash:
        traceback.print_exc()
        status, error = 1, f"{type(crash).__name__}: {crash}"
    finally:
        hook.remove()
        recorder.stop()
    if tool == "chrome":
        write_whole(folder / FILE, msgspec.json.encode(Outcome(recorder.steps, error)))
    return status


def read_outcome(folder: Path) -> Outcome:
    """How the script of a folder ended; unknown if its process was killed."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Outcome)
    except (OSError, msgspec.DecodeError):
        return Outcome(error="the process ended before it could say how")
