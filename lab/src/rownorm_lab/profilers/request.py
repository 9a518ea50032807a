"""What is profiled: a norm by itself, a training step of a model, or a script. ``request.json`` in the folder.

``tools.json`` beside it has how the tools fared, and where. It is written after each tool, so that an interrupted run
can be summarized.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..data.case import Case
from ..data.files import read_json, write_json
from ..data.profiles import ToolResult
from ..data.records import Environment

FILE = "request.json"
TOOLS = "tools.json"
HOST = "host.json"  # a ``Times``, measured without a profiler
DIFFERENCE = "difference"  # of rownorm's y, or dx, from torch's: the largest
STEPS = 3  # of a script that are profiled
CALLS = 10  # of a norm, in a trace
MODEL_STEPS = 2  # of a model, in a trace

Times = dict[str, dict[str, float]]  # subject: name: seconds of one call or step, or a difference


class ModelStep(msgspec.Struct, frozen=True):
    """A training step of a model. stage: the one of PyTorch, which is profiled beside rownorm's."""

    task: str
    size: str
    stage: str


class Script(msgspec.Struct, frozen=True):
    """A user's script. steps: optimizer steps to profile, after which it is ended; 0: all of it."""

    path: str
    arguments: list[str] = []
    steps: int = STEPS


class ProfileRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the three."""

    case: Case | None = None
    model: ModelStep | None = None
    script: Script | None = None

    @property
    def subjects(self) -> tuple[str, ...]:
        """Whose work is recorded."""
        return ("script",) if self.script else ("rownorm", "torch")

    @property
    def title(self) -> str:
        """The work in one line."""
        if self.case:
            return self.case.title
        if self.model:
            return f"a training step of {self.model.task} {self.model.size}"
        assert self.script is not None
        return " ".join([Path(self.script.path).name, *self.script.arguments])

    @property
    def unit(self) -> str:
        """What is counted: a call of a norm, or a step."""
        return "call" if self.case else "step"


def repeats(request: ProfileRequest, tool: str) -> int:
    """How many calls or steps of each subject are recorded. Counters need one."""
    if tool == "counters":
        return 1
    return CALLS if request.case else MODEL_STEPS


class Collected(msgspec.Struct, frozen=True):
    """The tools that have run so far, and the machine that they ran on."""

    environment: Environment
    tools: list[ToolResult] = []


def write_collected(folder: Path, collected: Collected) -> None:
    """Write ``tools.json``, whole or not at all."""
    write_json(folder / TOOLS, collected)


def read_collected(folder: Path) -> Collected:
    """The tools of a folder; ValueError with the reason if they cannot be read."""
    return read_json(folder / TOOLS, Collected, "the tools of a profile")


def write_request(folder: Path, request: ProfileRequest) -> None:
    """Write ``request.json``, whole or not at all."""
    write_json(folder / FILE, request)


def read_request(folder: Path) -> ProfileRequest:
    """The request of a folder; ValueError with the reason if it cannot be read."""
    return read_json(folder / FILE, ProfileRequest, "a request of profile")
