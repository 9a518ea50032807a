"""Run a compiled kernel's addresses: every global access of chosen programs, without a GPU.

A kernel's LLVM IR is executed for all threads of some programs at once, in numpy. Only integers and pointers are
computed: program ids, loop counters, masks, addresses. Values of rows and parameters are unknown, and so is everything
that is computed from them. The kernels branch on such a value only for a row that needs extra work, because its mean is
large. The trace takes the other path: the one without a loop, or with fewer accesses.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .accesses import Access, access_of
from .llir import Function, Instruction, bits_of, split_operands
from .operations import BINARY, Value, binary, compare, convert, select
from .vectors import elements, literal, moved, shape_of, typed

_FLAGS = re.compile(
    r"^(?:(?:nuw|nsw|nusw|exact|disjoint|nneg|samesign|inbounds|inrange|fast|reassoc|contract)\s+)+"
)
MOST_STEPS = 200_000  # blocks; a kernel that takes more does not end


class Unresolved(Exception):
    """An address, a mask or a branch depends on something that the trace does not know."""


class Launch(NamedTuple):
    """The programs to trace. programs: their ids, x fastest; n_programs: of the whole grid, or of its x."""

    programs: np.ndarray[Any, Any]
    n_programs: int
    threads: int  # of a program
    warp_size: int
    size_y: int = 1  # of the grid in its second dimension; the third follows


# (visit, access, addresses, mask). Accesses with the same visit have no branch between them.
OnAccess = Callable[[int, Access, Value, Value], None]


def trace(
    function: Function,
    arguments: Sequence[Value],
    launch: Launch,
    on_access: OnAccess,
    on_unknown: Callable[[Access], None] | None = None,
    limit_s: float = math.inf,
) -> None:
    """Call ``on_access`` for every global access, in order, with one address and one mask (0 or 1) for each thread.

    arguments: of the kernel; those that are None or missing are unknown. on_unknown: is called for an access whose
    address or mask is unknown, which is an error without it. limit_s: a trace that takes longer is an error.
    """
    _Threads(function, arguments, launch, on_access, on_unknown).run(limit_s)


class _Threads:
    """All threads of the traced programs: the block that each is in, and the values of registers."""

    def __init__(
        self,
        function: Function,
        arguments: Sequence[Value],
        launch: Launch,
        on_access: OnAccess,
        on_unknown: Callable[[Access], None] | None = None,
    ) -> None:
        self.launch = launch
        self.on_access = on_access
        self.on_unknown = on_unknown
        n = len(launch.programs) * launch.threads
        in_line, x = launch.programs // launch.n_programs, launch.programs % launch.n_programs
        self.values: dict[str, Value] = {
            "@tid": np.tile(np.arange(launch.threads), len(launch.programs)),
            "@program": np.repeat(x, launch.threads),
            "@program_y": np.repeat(in_line % launch.size_y, launch.threads),
            "@program_z": np.repeat(in_line // launch.size_y, launch.threads),
            "@n_programs": launch.n_programs,
            "@n_programs_y": launch.size_y,
            **dict(zip(function.arguments, arguments, strict=False)),
        }
        self.blocks = function.blocks
        self.index = {block.name: i for i, block in enumerate(function.blocks)}
        self.decoded = [[_decode(one) for one in block.instructions] for block in function.blocks]
        self.at = np.zeros(n, np.int64)  # the block of each thread; len(blocks): it has returned
        self.came_from = np.full(n, -1)
        self.active: np.ndarray[Any, Any] | None = None  # of the current block; None: all threads
        self.current = 0  # the block that runs
        self.visit = 0  # blocks that have run
        # Threads that have loaded, by address.
        self.loaded: dict[tuple[str, str, int, int], Value] = {}

    def run(self, limit_s: float) -> None:
        """Until every thread has returned. The earliest block goes first, so that threads meet again after a branch."""
        began = time.monotonic()
        for self.visit in range(MOST_STEPS):
            if time.monotonic() - began > limit_s:
                raise Unresolved(f"the trace takes more than {limit_s:g} s")
            self.current = int(self.at.min())
            if self.current == len(self.blocks):
                return
            mask = self.at == self.current
            self.active = None if mask.all() else mask
            self.loaded.clear()
            self.phis(mask)
            for run in self.decoded[self.current]:
                if run is not None:
                    run(self)
        raise Unresolved("a loop does not end")

    def phis(self, mask: np.ndarray[Any, Any]) -> None:
        """The values that depend on the block a thread comes from; all are read before any is set."""
        found = []
        for one in self.blocks[self.current].instructions:
            if one.opcode != "phi":
                break
            pairs = re.findall(r"\[ (.+?), (%[\w.$-]+) \]", one.text)
            sources = {self.index[block]: self.value(value) for value, block in pairs}
            first, *others = np.unique(self.came_from[mask]).tolist()
            merged = sources[first]
            for block in others:
                merged = merge(self.came_from == block, sources[block], merged)
            found.append((one.result, merged))
        for result, merged in found:
            self.assign(result, merged)

    def value(self, operand: str) -> Value:
        """The value of a register, of a literal, or of what has a name with @."""
        return self.values.get(operand) if operand[0] in "%@" else literal(operand)

    def assign(self, result: str, value: Value) -> None:
        """Set a register for the active threads."""
        if self.active is not None and result in self.values:
            value = merge(self.active, value, self.values[result])
        self.values[result] = value

    def mask(self, condition: Value) -> Value:
        """The active threads in which the condition holds; None is unknown."""
        if condition is None or self.active is None:
            return condition
        return self.active & (np.asarray(condition) != 0)

    def access(self, access: Access) -> None:
        """Report a global access; an access of unknown threads or addresses is an error."""
        operands = [self.value(one) for one in access.operands]
        condition = access.condition(operands)
        address = access.address(operands)
        if condition is None or address is None:
            if self.on_unknown is not None:
                self.on_unknown(access)
                return
            raise Unresolved(f"a {access.kind} of {access.width} bytes has no known address")
        mask = self.mask(condition)
        if access.kind == "load":
            mask = self.not_loaded(access, mask)
        elif access.kind != "copy":
            self.loaded.clear()
        self.on_access(self.visit, access, address, mask)

    def not_loaded(self, access: Access, mask: Value) -> Value:
        """The threads that have not loaded from this address before in this block.

        Triton repeats a load for every element of a thread that has the same address; the assembler merges them.
        """
        index = "" if access.offset_at is None else access.operands[access.offset_at]
        key = (access.operands[access.address_at], index, access.offset, access.width)
        before = self.loaded.get(key, 0)
        self.loaded[key] = np.asarray(before) | (np.asarray(mask) != 0)
        return (np.asarray(mask) != 0) & (np.asarray(before) == 0)

    def goto(self, block: str, condition: Value = 1) -> None:
        """Send the active threads in which the condition holds to a block."""
        moving = np.broadcast_to(np.asarray(condition) != 0, self.at.shape)
        if self.active is not None:
            moving = moving & self.active
        self.came_from[moving], self.at[moving] = self.current, self.index[block]

    def cheaper(self, a: str, b: str) -> str:
        """Of two blocks that may follow, the one whose path has no loop, or fewer global accesses, until they meet."""
        here = self.blocks[self.current].name
        from_a, from_b = self._reached(a, here), self._reached(b, here)
        return a if self._cost(from_a - from_b) < self._cost(from_b - from_a) else b

    def _reached(self, start: str, without: str) -> set[str]:
        seen, todo = {start}, [start]
        while todo:
            for name in self.blocks[self.index[todo.pop()]].followers:
                if name not in seen and name != without:
                    seen.add(name)
                    todo.append(name)
        return seen

    def _cost(self, names: set[str]) -> tuple[bool, int]:
        """(whether there is a loop among these blocks, their global accesses)."""
        blocks = [self.blocks[self.index[name]] for name in names]
        loops = any(
            other in names and self.index[other] <= self.index[block.name]
            for block in blocks
            for other in block.followers
        )
        return loops, sum(
            access_of(one) is not None for block in blocks for one in block.instructions
        )

    def first_lane(self, value: Value) -> Value:
        """The value of the first active thread of each warp, in all of its threads (AMD's readfirstlane)."""
        if value is None or isinstance(value, int):
            return value
        warps = value.reshape(-1, self.launch.warp_size)
        first = np.zeros(len(warps), np.int64)
        if self.active is not None:
            first = self.active.reshape(warps.shape).argmax(axis=1)
        return np.repeat(warps[np.arange(len(warps)), first], self.launch.warp_size)

    def finish(self) -> None:
        """``ret`` of the active threads."""
        self.at[slice(None) if self.active is None else self.active] = len(self.blocks)


def merge(mask: np.ndarray[Any, Any], value: Value, other: Value) -> Value:
    """``value`` where the mask holds, else ``other``. Unknown where either is."""
    if isinstance(value, tuple) and isinstance(other, tuple):
        return tuple(merge(mask, a, b) for a, b in zip(value, other, strict=True))
    if value is None or other is None or isinstance(value, tuple) or isinstance(other, tuple):
        return None
    return np.where(mask, value, other)


Run = Callable[[_Threads], None]
Compute = Callable[[_Threads], Value]
_SPECIAL = {
    "llvm.nvvm.read.ptx.sreg.tid.x": "@tid",
    "llvm.amdgcn.workitem.id.x": "@tid",
    "llvm.nvvm.read.ptx.sreg.ctaid.x": "@program",
    "llvm.amdgcn.workgroup.id.x": "@program",
    "llvm.nvvm.read.ptx.sreg.ctaid.y": "@program_y",
    "llvm.amdgcn.workgroup.id.y": "@program_y",
    "llvm.nvvm.read.ptx.sreg.ctaid.z": "@program_z",
    "llvm.amdgcn.workgroup.id.z": "@program_z",
    "llvm.nvvm.read.ptx.sreg.nctaid.x": "@n_programs",
    "llvm.nvvm.read.ptx.sreg.nctaid.y": "@n_programs_y",
    # AMD: a kernel's implicit arguments begin with the size of the grid.
    "llvm.amdgcn.implicitarg.ptr": "@n_programs",
}


def _decode(one: Instruction) -> Run | None:
    """What an instruction does to the threads; None if its result stays unknown."""
    if access := access_of(one):
        return lambda threads: threads.access(access)
    if one.opcode == "br":
        return _branch(one.text)
    if one.opcode == "switch":
        return _switch(one.text)
    if one.opcode == "ret":
        return _Threads.finish
    if compute := _call(one.text) if one.opcode == "call" else _computed(one):
        return lambda threads: threads.assign(one.result, compute(threads))
    return None


def _computed(one: Instruction) -> Compute | None:
    """What an instruction computes; None if it is nothing that addresses depend on."""
    text, name = _FLAGS.sub("", one.text), one.opcode
    operands = split_operands(text)
    if name in BINARY:
        (kind, a), b = typed(operands[0]), operands[1]
        n, bits = shape_of(kind)
        return _of(lambda x, y: binary(name, x, y, bits), a, b, n=n)
    if name == "icmp":
        predicate, rest = operands[0].split(" ", 1)
        (kind, a), b = typed(rest), operands[1]
        n, bits = shape_of(kind)
        return _of(lambda x, y: compare(predicate, x, y, bits), a, b, n=n)
    if name == "select":
        (_, condition), (kind, a), (_, b) = map(typed, operands[:3])
        return _of(select, condition, a, b, n=shape_of(kind)[0])
    if name in ("zext", "sext", "trunc"):
        source, after = operands[0].split(" to ")
        kind, a = typed(source)
        (n, before_bits), (_, after_bits) = shape_of(kind), shape_of(after)
        return _of(lambda x: convert(name, x, before_bits, after_bits), a, n=n)
    if name == "getelementptr" and len(operands) == 3:
        size = bits_of(operands[0]) // 8 or None  # a type that is not known has no known size
        (_, base), (_, index) = map(typed, operands[1:])
        return _of(lambda x, i: binary("add", x, binary("mul", i, size, 64), 64), base, index)
    if name in ("freeze", "ptrtoint", "inttoptr", "addrspacecast", "bitcast"):
        return _of(_same, typed(operands[0].split(" to ")[0])[1])
    if name == "load" and "addrspace(4)" in text:
        return _of(_same, typed(operands[1])[1])
    if compute := moved(name, operands):
        return lambda threads: compute(threads.value)
    return None


def _of(function: Callable[..., Value], *operands: str, n: int = 0) -> Compute:
    """A function of these operands; of each of their elements, if they are vectors of n."""
    if not n:
        return lambda threads: function(*map(threads.value, operands))
    return lambda threads: tuple(
        map(function, *(elements(operand, n, threads.value) for operand in operands))
    )


def _same(value: Value) -> Value:
    return value


def _branch(text: str) -> Run:
    blocks = re.findall(r"label (%[\w.$-]+)", text)
    if len(blocks) == 1:
        return lambda threads: threads.goto(blocks[0])
    (then, otherwise), subject = blocks, typed(text.split(",")[0])[1]

    def run(threads: _Threads) -> None:
        condition = threads.value(subject)
        if condition is None:
            threads.goto(threads.cheaper(then, otherwise))
            return
        threads.goto(otherwise)
        threads.goto(then, condition)

    return run


def _switch(text: str) -> Run:
    subject = typed(text.split(",")[0])[1]
    default = re.findall(r"label (%[\w.$-]+)", text)[0]
    cases = re.findall(r"i\d+ (-?\d+), label (%[\w.$-]+)", text)

    def run(threads: _Threads) -> None:
        value = threads.value(subject)
        if value is None:
            raise Unresolved("a switch depends on values of the rows")
        threads.goto(default)
        for number, block in cases:
            threads.goto(block, np.asarray(value) == int(number))

    return run


def _call(text: str) -> Compute | None:
    """Intrinsics that addresses are computed with."""
    if re.search(r'asm "mov\.u32 \$0, %tid\.x;"', text):
        return _of(_same, "@tid")
    match = re.search(r"@([\w.]+)\((.*)\)", text)
    if match is None:
        return None
    name, operands = match[1], [typed(part)[1] for part in split_operands(match[2])]
    if special := _SPECIAL.get(name):
        return _of(_same, special)
    if found := re.fullmatch(r"llvm\.([su](?:min|max))\.i(\d+)", name):
        operation, bits = found[1], int(found[2])
        return _of(lambda x, y: binary(operation, x, y, bits), *operands[:2])
    if name.startswith("llvm.amdgcn.readfirstlane"):
        return lambda threads: threads.first_lane(threads.value(operands[0]))
    if name.startswith("llvm.amdgcn.make.buffer.rsrc"):
        return _of(_same, operands[0])
    return None
