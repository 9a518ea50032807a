"""Global memory accesses in LLVM IR: which instruction is one, how wide, at which address, in which threads."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import numpy as np

from .llir import Instruction, bits_of, split_operands
from .operations import Value

Kind = Literal["load", "store", "copy", "atomic", "poll"]
# Inline PTX: an optional predicate, the operation, the width, and the operand with the address.
_PTX = re.compile(
    r"(?:@\$(?P<predicate>\d+)\s+)?(?P<operation>ld|st|atom)\.(?P<rest>[\w.:]*global[\w.:]*?)"
    r"(?P<vector>\.v[248])?\.[bfsu](?P<bits>\d+)\s[^\[]*\[\s*\$(?P<address>\d+)(?:\s*\+\s*(?P<offset>\d+))?\s*\]"
)
_COPY = re.compile(
    r"(?:@\$(?P<predicate>\d+)\s+)?cp\.async\.c[ag]\.shared\.global[\w.:]*\s+\[[^\]]*\],\s*"
    r"\[\s*\$(?P<address>\d+)(?:\s*\+\s*(?P<offset>\d+))?\s*\],\s*(?P<bytes>0x[0-9a-f]+|\d+)"
    r"(?:,\s*\$(?P<size>\d+))?"
)
# Bytes that a buffer of Triton has; a masked thread has an offset beyond it.
_NUM_RECORDS = 2147483646


class Access(NamedTuple):
    """One global access; ``address_at`` and so on are indices into the operands."""

    kind: Kind  # copy: from global to shared memory (cp.async); poll: loads a word that another program writes
    width: int  # bytes of one thread
    operands: tuple[str, ...]
    address_at: int
    offset: int = 0
    offset_at: int | None = None  # AMD: the operand with the offset in a buffer
    conditions_at: tuple[int, ...] = ()  # a thread takes part where none of these operands is 0

    def address(self, values: list[Value]) -> Value:
        """The address of each thread."""
        base = values[self.address_at]
        if base is None:
            return None
        if self.offset_at is None:
            return base + self.offset
        offset = values[self.offset_at]
        return None if offset is None else base + (offset & 0xFFFFFFFF)

    def condition(self, values: list[Value]) -> Value:
        """Whether a thread takes part: 0 or 1; None where it is unknown."""
        if self.offset_at is not None:
            offset = values[self.offset_at]
            if offset is None:
                return None
            inside = (offset & 0xFFFFFFFF) < _NUM_RECORDS
            return int(inside) if isinstance(inside, bool) else inside
        condition: Value = 1
        for index in self.conditions_at:
            if values[index] is None:
                return None
            condition = condition & (np.asarray(values[index]) != 0)
        return condition


def access_of(one: Instruction) -> Access | None:
    """The global access that an instruction is, or None."""
    if one.opcode == "call":
        return _inline(one.text) if " asm " in f" {one.text}" else _buffer(one.text)
    if one.opcode not in ("load", "store") or "addrspace(1)" not in one.text:
        return None
    operands = split_operands(re.sub(r"^(volatile|atomic)\s+", "", one.text))
    kind = operands[0] if one.opcode == "load" else operands[0].rsplit(" ", 1)[0]
    pointer = operands[1].split(" ")[-1]
    return Access("load" if one.opcode == "load" else "store", bits_of(kind) // 8, (pointer,), 0)


def _inline(text: str) -> Access | None:
    """An access in inline PTX. Its operands are numbered: outputs first, then the arguments of the call."""
    quoted = re.match(r'.*?asm (?:sideeffect )?"((?:[^"\\]|\\.)*)", "([^"]*)"\((.*)\)', text)
    if quoted is None:
        return None
    code, constraints, arguments = quoted[1], quoted[2].split(","), quoted[3]
    n_outputs = sum(one.startswith("=") for one in constraints)
    operands = tuple(part.split(" ")[-1] for part in split_operands(arguments))

    def at(*numbers: str | None) -> tuple[int, ...]:
        return tuple(int(number) - n_outputs for number in numbers if number is not None)

    if match := _COPY.search(code):
        return Access(
            kind="copy",
            width=int(match["bytes"], 0),
            operands=operands,
            address_at=at(match["address"])[0],
            offset=int(match["offset"] or 0),
            conditions_at=at(match["size"], match["predicate"]),
        )
    match = _PTX.search(code)
    if match is None or "shared" in match["rest"]:
        return None
    width = int(match["bits"]) // 8 * int((match["vector"] or ".v1")[2:])
    place = at(match["address"])[0]
    if "relaxed" in match["rest"] and match["operation"] == "ld":
        # exchange/grid.py: "setp.ne.s32 wanted, $n, 0"; the loop that waits loads again and is not counted.
        wanted = re.search(r"setp\.ne\.s32 \w+, \$(\d+), 0", code)
        if "again:" in code or wanted is None:
            return None
        return Access("poll", width, operands, place, conditions_at=at(wanted[1]))
    kinds: dict[str, Kind] = {"ld": "load", "st": "store", "atom": "atomic"}
    kind, offset = kinds[match["operation"]], int(match["offset"] or 0)
    return Access(kind, width, operands, place, offset, conditions_at=at(match["predicate"]))


def _buffer(text: str) -> Access | None:
    """An AMD buffer intrinsic: (resource, offset, ...) or (value, resource, offset, ...)."""
    match = re.search(r"@llvm\.amdgcn\.raw\.ptr\.buffer\.(load|store)\.(\w+)\((.*)\)", text)
    if match is None:
        return None
    operands = tuple(part.split(" ")[-1] for part in split_operands(match[3]))
    found = re.fullmatch(r"(?:v(\d+))?(?:i|f|bf)(\d+)", match[2])
    if found is None:
        return None
    width = int(found[1] or 1) * int(found[2]) // 8
    kind: Kind = "load" if match[1] == "load" else "store"
    resource = int(kind == "store")
    return Access(kind, width, operands, resource, 0, resource + 1)
