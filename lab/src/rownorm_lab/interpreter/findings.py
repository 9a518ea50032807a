"""What a recorded launch says: findings, and who read and wrote which elements. Needs neither torch nor Triton."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..data.texts import count

SECTOR = 32  # bytes
MOST_ACCESSES = 4  # of one program that are kept and drawn
Kind = Literal["write-write", "read-write", "bounds", "int32", "lanes", "order"]
WORDS: dict[Kind, str] = {
    "write-write": "two programs write one address",
    "read-write": "one program reads what another writes in the same launch",
    "bounds": "an active lane leaves its tensor",
    "int32": "an offset passes 2^31 in int32",
    "lanes": "two lanes of one store write different values to one address",
    "order": "the result depends on the order of the programs",
}


class Site(NamedTuple):
    """A line of a kernel."""

    file: str
    line: int
    access: str  # "load", "store" or "atomic"

    def __str__(self) -> str:
        return f"{self.access} in line {self.line}"


class Finding(NamedTuple):
    """One kind of mistake at one place. element: the first one, counted from the start of the tensor."""

    kind: Kind
    launch: int
    kernel: str
    tensor: str
    element: int
    programs: tuple[int, ...]  # of the first element
    lane: int  # of the first element, in the block of the last program
    sites: tuple[Site, ...]
    lanes: int  # in all

    def __str__(self) -> str:
        where = ", ".join(map(str, self.sites))
        who = " and ".join(map(str, self.programs))
        who = f"program{'s' if len(self.programs) > 1 else ''} {who}"
        if self.kind in ("read-write", "write-write") and len(self.programs) == 1:
            who += " and several others"
        what = f"{self.tensor}[{self.element}]"
        if self.kind == "order":
            return f"{self.kernel}: {WORDS[self.kind]}: {what} differs, {count(self.lanes, 'element')} in all"
        text = f"{self.kernel}: {WORDS[self.kind]}: {what}, {who}, lane {self.lane}"
        text += f" ({where})" if where else ""
        return text + (f"; {self.lanes} lanes in all" if self.lanes > 1 else "")


class Run(NamedTuple):
    """Neighboring elements that the same programs wrote. programs: the last writer, or two if they race."""

    first: int
    last: int
    programs: tuple[int, ...]


class TensorUse(NamedTuple):
    """How the programs of one launch used one storage, in elements."""

    tensor: str
    elements: int
    read: int
    written: int
    readers: int  # programs
    writers: int
    atomics: int  # elements
    runs: list[Run]


class Reach(NamedTuple):
    """How far the stores of a launch went in a storage without contents, in elements."""

    tensor: str
    elements: int
    end: int


class Access(NamedTuple):
    """One load, store or atomic of one program.

    active: by lane; offsets: in bytes from the start of the tensor; outside: active lanes that leave it.
    """

    site: Site
    tensor: str
    program: int
    width: int  # bytes of an element
    active: list[bool]
    offsets: list[int]
    outside: tuple[int, ...] = ()

    @property
    def touched(self) -> list[int]:
        """The offsets of the active lanes."""
        lanes = zip(self.offsets, self.active, strict=True)
        return [offset for offset, active in lanes if active]

    @property
    def sectors(self) -> int:
        """32-byte sectors that the active lanes touch."""
        return len({offset // SECTOR for offset in self.touched})

    @property
    def least_sectors(self) -> int:
        """Sectors that as many bytes would fill."""
        return -(-len(set(self.touched)) * self.width // SECTOR)


class RecordedLaunch(NamedTuple):
    """One launch of a kernel. sampled: too large to run whole, so only some of its programs ran.

    accesses: the first ones of the first and of the last program, or all: see ``recorded``. reached: of the tensors
    without contents.
    """

    number: int
    kernel: str
    grid: tuple[int, ...]
    sampled: bool
    uses: list[TensorUse]
    accesses: list[Access]
    reached: tuple[Reach, ...] = ()

    @property
    def shown(self) -> list[Access]:
        """The first accesses of the first and of the last program."""
        programs = [one.program for one in self.accesses]
        return [
            one
            for first in dict.fromkeys(programs[:1] + programs[-1:])
            for one in [one for one in self.accesses if one.program == first][:MOST_ACCESSES]
        ]


class Recording(NamedTuple):
    """All launches of a block of code, and what was found in them."""

    launches: list[RecordedLaunch]
    findings: list[Finding]
