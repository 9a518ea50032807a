"""What the grader asks the learner's process, and what it answers. Importing it does not import Triton."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from rownorm_lab.data.analyses import KernelAnalysis
from rownorm_lab.data.case import Case
from rownorm_lab.interpreter.findings import Finding, RecordedLaunch

TARGET = "sm_90"  # for which kernels are compiled
GUARD = 1024  # elements before and after an allocation
# A NaN that no computation gives, as an integer: memory that was never written has it.
POISON = {
    torch.float16: (torch.int16, 0x7E5A),
    torch.bfloat16: (torch.int16, 0x7FDA),
    torch.float32: (torch.int32, 0x7FC5A5A5),
    torch.float64: (torch.int64, 0x7FF85A5A5A5A5A5A),
}


def unwritten(memory: Tensor) -> int:
    """How many elements were never written."""
    integers, poison = POISON[memory.dtype]
    return int((memory.detach().contiguous().view(integers) == poison).sum())


class Watch(msgspec.Struct, kw_only=True):
    """How a call is watched.

    purpose: "run"; "kernels" and "analysis": its kernels are compiled instead of started, and analyzed; "measure": it
    is timed, beside the providers ``others``. Without ``launch``, kernels are recorded and not started.

    In the interpreter: masked: what a load without ``other`` gives its masked lanes, if they are floating-point.
    orders: how many other orders of the programs are tried. everything: all accesses are kept. adds: what a learner's
    function combines by tl.reduce is added.
    """

    purpose: Literal["run", "kernels", "analysis", "measure"] = "run"
    launch: bool = True
    masked: float = float("nan")
    orders: int = 1
    everything: bool = False
    adds: bool = False
    case: Case | None = None
    others: list[str] = []

    @property
    def compiles(self) -> bool:
        return self.purpose in ("kernels", "analysis")

    @property
    def runs(self) -> bool:
        return self.launch and not self.compiles


class Request(msgspec.Struct, kw_only=True):
    """One call in the learner's process.

    op: "call" a function of a file; "train" a module of it; "own": a function of ``host.OWN``, which is not the
    learner's. answer: the argument that holds the result; -1: what the function returns.
    """

    op: Literal["call", "train", "own"] = "call"
    file: str = ""
    name: str = ""
    args: Any = None  # see wire.encode
    named: Any = None
    watch: Watch | None = None
    answer: int = -1


class Launched(msgspec.Struct, kw_only=True):
    """One kernel launch. arguments: numbers and texts, by name; tensors are left out.

    roles: in the interpreter, what the tensors of the accesses are, by their names there: "0" is the first argument of
    the learner's function, "result" what it returned, "result 0" the first of several results.
    """

    kernel: str
    grid: list[int]
    arguments: dict[str, int | float | str | bool | None]
    roles: dict[str, str] = {}


class Compiled(msgspec.Struct, kw_only=True):
    """One compiled kernel. tensors: by role."""

    name: str
    n_programs: int
    tensors: list[str]
    spills: int
    ptx: str


class CompiledCall(msgspec.Struct, kw_only=True):
    """The kernels of one call, with what the lab's analysis says about them."""

    kernels: list[Compiled]
    analyses: list[KernelAnalysis] = []
    predicted_seconds: float = 0.0
    memory_bytes: float = 0.0  # to and from memory, of all kernels


class Seen(msgspec.Struct, kw_only=True):
    """What happened during the calls that were watched."""

    launches: list[Launched] = []
    operators: list[str] = []  # of PyTorch, without the harmless ones
    # "file, line": loads in the interpreter whose masked lanes had no other
    unfilled: list[str] = []
    created: list[int] = []  # elements of every tensor that was made
    findings: list[Finding] = []  # of the interpreter
    recorded: list[RecordedLaunch] = []
    blocks: list[list[int]] = []  # shapes of what was loaded, in the interpreter
    # Functions that reductions were given there; Triton's own begin with tl.
    combined: list[str] = []
    foreign: int = 0  # values of the result that no kernel stored, in the interpreter
    overrun: bool = False  # something was stored before or after an allocated tensor
    changed: list[int] = []  # arguments whose memory was written
    returned: list[int] = []  # arguments whose memory was returned
    compiled: CompiledCall | None = None
    measured: dict[str, float] = {}  # seconds by provider

    def add(self, other: Seen) -> None:
        """What another call did."""
        for name in self.__struct_fields__:
            if isinstance(found := getattr(self, name), list):
                found += getattr(other, name)
        self.overrun |= other.overrun
        self.foreign += other.foreign
        self.compiled, self.measured = other.compiled, other.measured


class ErrorReply(msgspec.Struct, kw_only=True):
    """The call raised. reason: the first complaint of a validator; pending: see ``grades.Pending``."""

    message: str
    habit: str = ""
    reason: str = ""
    pending: bool = False


class Reply(msgspec.Struct, kw_only=True):
    """The result of one request. patched: a function of this process's own that was replaced."""

    value: Any = None  # see wire.encode
    seen: Seen | None = None
    error: ErrorReply | None = None
    patched: str = ""


def plain(value: Any) -> Any:
    """For msgspec: a NumPy number as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in a reply")
