"""A ``Profile``: what the profilers of a machine say about one piece of work. One JSON file, ``summary.json``.

Every figure names its source: the tool and the counter, the clock, or the prediction that it was made from. Changing
the meaning of a field requires a new ``SCHEMA``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from .case import Case
from .files import json_text, read_json, write_whole
from .records import Environment
from .studies import KernelTime

SCHEMA = 1
FILE = "summary.json"
NEAR_PEAK = 0.75  # of the specified bandwidth: an elementwise kernel reaches 0.85 to 0.9
Status = Literal["ok", "missing", "denied", "failed"]
Unit = Literal["s", "B/s", "share", "number"]


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one tool fared. why: the reason and the remedy; of a tool that is ok, what it could not do."""

    tool: str
    status: Status
    why: str = ""
    files: list[str] = []  # in the folder of the profile


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number. subject: rownorm, torch or script, with the kernel if it is about one."""

    name: str
    subject: str
    value: float
    unit: Unit
    source: str


class ScriptNorm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A norm that was found in a script: everything of one kind, in one step."""

    what: str  # the class of the module, the function or the operator
    calls: float
    seconds: float  # of all calls
    direction: str = ""  # forward or backward; "" if a kernel does not say it
    case: Case | None = None  # None: the shape is unknown, or rownorm computes it already
    rownorm_seconds: float | None = None  # of all calls with rownorm; None: not estimated
    source: str = ""  # of rownorm_seconds, or why there is none


class ScopeTime(msgspec.Struct, frozen=True, kw_only=True):
    """A scope of a program, or a kernel in it, in the order of the tree. calls and seconds: of one call or step."""

    path: list[str]  # the names from the outermost scope to this one
    calls: float  # of kernels, in it and below it
    seconds: float
    is_kernel: bool


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the counters say about one line of a kernel's source, summed over the launches of that kernel.

    file: the innermost file, relative to the script's folder or to the folder of its package. samples: of a warp at
    this line, at regular times. stall: ncu's name of what these warps waited for most often, in ``stall_samples`` of
    the samples; selected: they did not wait. sectors: of 32 bytes of global memory, that the accesses address;
    excess_sectors: of these, more than the same bytes would need side by side.
    """

    kernel: str
    file: str
    line: int
    text: str  # of the line; "" if ncu did not find the file
    samples: int
    instructions: int  # that warps executed
    sectors: int
    excess_sectors: int
    stall: str
    stall_samples: int

    @property
    def times_needed(self) -> float:
        """The sectors over those that the same bytes need side by side: 1 if they are."""
        needed = self.sectors - self.excess_sectors
        return self.sectors / needed if needed else 1.0


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """The whole file."""

    title: str
    date: str
    environment: Environment
    tools: list[ToolResult]
    figures: list[Figure]
    kernels: dict[str, list[KernelTime]]  # by subject; of one call or one step, largest first
    norms: list[ScriptNorm]
    bottleneck: str
    advice: list[str]
    scopes: dict[str, list[ScopeTime]] = {}  # by subject: Proton's tree, if the program has scopes
    lines: list[SourceLine] = []  # kernels, and lines of each, with the most samples first

    def figure(self, name: str, subject: str) -> Figure | None:
        """The first figure of that name."""
        found = (one for one in self.figures if (one.name, one.subject) == (name, subject))
        return next(found, None)


def write_profile(folder: Path, profile: Profile) -> Path:
    """Write ``summary.json``, whole or not at all."""
    return write_whole(folder / FILE, encoded(profile))


def encoded(profile: Profile) -> bytes:
    """The profile as JSON."""
    return json_text(profile)


def read_profile(folder: Path) -> Profile | None:
    """The profile of a folder; None if it has none. ValueError if the file cannot be used."""
    file = folder / FILE
    return read_json(file, Profile, "a profile") if file.exists() else None


def share_of_norms(kernels: Sequence[KernelTime]) -> float | None:
    """The share of kernel time that norms take; None if no kernel was recorded."""
    total = sum(one.seconds for one in kernels)
    return sum(one.seconds for one in kernels if one.is_norm) / total if total else None
