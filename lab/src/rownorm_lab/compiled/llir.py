"""LLVM IR as Triton leaves it in ``asm["llir"]``, for NVIDIA and AMD: blocks of instructions, and their operands.

Triton's last common form for both vendors. Integers, pointers and control flow are plain LLVM; global loads and stores
are inline PTX (NVIDIA), buffer intrinsics or LLVM's own ``load`` and ``store`` (AMD).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LABEL = re.compile(r'^("?[\w.$-]+"?):')
_ASSIGNED = re.compile(r'^(%[\w.$-]+|%"[^"]+") = (.*)$')
_TARGETS = re.compile(r"label (%[\w.$-]+)")


class Instruction(NamedTuple):
    """One instruction. text: everything after the opcode."""

    result: str  # the register, or ""
    opcode: str  # "add", "load", "call", ...
    text: str


class Block(NamedTuple):
    """A basic block; its last instruction names the blocks that may follow."""

    name: str
    instructions: list[Instruction]
    followers: list[str]


class Function(NamedTuple):
    """A kernel: its arguments in order, and its blocks in an order in which a block follows those it depends on."""

    arguments: list[str]
    blocks: list[Block]


def parse(text: str) -> Function:
    """The kernel of a module."""
    lines = iter(text.splitlines())
    header = next((line for line in lines if line.startswith("define ") and "_kernel " in line), "")
    if not header:
        raise ValueError("the compiler's LLVM IR defines no kernel")
    arguments = re.findall(r"(%[\w.]+)(?=[,)])", header)
    name, body = f"%{len(arguments)}", list[Instruction]()
    blocks: list[Block] = []
    for line in lines:
        if line == "}":
            break
        if label := _LABEL.match(line):
            if body:
                blocks.append(_block(name, body))
            name, body = f"%{label[1]}", []
        elif line.startswith("  ]") or line.startswith("    "):  # the cases of a switch
            last = body.pop()
            body.append(last._replace(text=f"{last.text} {line.strip()}"))
        elif line.strip():
            body.append(_instruction(line.strip()))
    blocks.append(_block(name, body))
    return Function(arguments, _ordered(blocks))


def _instruction(line: str) -> Instruction:
    assigned = _ASSIGNED.match(line)
    result, rest = (assigned[1], assigned[2]) if assigned else ("", line)
    rest = re.sub(r"^(tail|musttail|notail) call", "call", rest)
    opcode, _, text = rest.partition(" ")
    return Instruction(result, opcode, text)


def _block(name: str, body: list[Instruction]) -> Block:
    return Block(name, body, _TARGETS.findall(body[-1].text))


def _ordered(blocks: list[Block]) -> list[Block]:
    """In reverse postorder: without loops, every block comes after all blocks that lead to it."""
    by_name = {block.name: block for block in blocks}
    seen, finished = {blocks[0].name}, list[Block]()
    stack = [(blocks[0], iter(blocks[0].followers))]
    while stack:
        block, followers = stack[-1]
        following = next((name for name in followers if name not in seen), None)
        if following is None:
            finished.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((by_name[following], iter(by_name[following].followers)))
    return finished[::-1]


def split_operands(text: str) -> list[str]:
    """The operands of a list: split at commas that are not inside brackets or quotes."""
    parts, depth, start, quoted = [], 0, 0, False
    for i, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part and not part.startswith("!")]


def bits_of(kind: str) -> int:
    """Bits of a type: "i32" is 32, "<8 x i16>" and "[16 x i8]" are 128, "ptr addrspace(1)" is 64; 0 for others."""
    if match := re.fullmatch(r"[<\[](\d+) x (.+)[>\]]", kind):
        return int(match[1]) * bits_of(match[2])
    if match := re.fullmatch(r"i(\d+)", kind):
        return int(match[1])
    known = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
    return 64 if kind.startswith("ptr") else known.get(kind, 0)
