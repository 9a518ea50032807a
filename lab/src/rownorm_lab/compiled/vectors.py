"""Vectors of integers in LLVM IR, which the compiler makes of neighboring masks. A vector is a tuple of values."""

from __future__ import annotations

import re
from collections.abc import Callable

from .llir import bits_of, split_operands
from .operations import Value

Lookup = Callable[[str], Value]
_TYPED = re.compile(r"(<\d+ x i\d+>) (.*)|(.*?)\s*(\S+)$", re.DOTALL)


def typed(operand: str) -> tuple[str, str]:
    """(type, operand) of "i32 %5", "ptr addrspace(1) %3" or "<2 x i32> <i32 0, i32 1>"."""
    match = _TYPED.match(operand)
    return (match[1] or match[3] or "", match[2] or match[4]) if match else ("", operand)


def shape_of(kind: str) -> tuple[int, int]:
    """(elements of a vector of integers, bits of each); of all other types, 0 and their bits."""
    found = re.fullmatch(r"<(\d+) x i(\d+)>", kind)
    return (int(found[1]), int(found[2])) if found else (0, bits_of(kind))


def literal(text: str) -> Value:
    """The number that a constant is; None if it is none."""
    known = {"true": 1, "false": 0, "null": 0}
    return int(text) if re.fullmatch(r"-?\d+", text) else known.get(text)


def elements(operand: str, n: int, look: Lookup) -> tuple[Value, ...]:
    """The elements of a register or a constant; unknown ones are None."""
    if operand.startswith("%"):
        value = look(operand)
        # The condition of a select may be one for all elements.
        return value if isinstance(value, tuple) else (value,) * n
    if operand == "zeroinitializer":
        return (0,) * n
    if found := re.fullmatch(r"splat \(i\d+ (-?\d+|true|false)\)", operand):
        return (literal(found[1]),) * n
    if operand.startswith("<"):
        return tuple(literal(part.split(" ")[-1]) for part in split_operands(operand[1:-1]))
    return (None,) * n


def moved(opcode: str, operands: list[str]) -> Callable[[Lookup], Value] | None:
    """What an instruction computes that takes a vector apart or puts one together; None for all other instructions."""
    if opcode not in ("extractelement", "insertelement", "shufflevector"):
        return None
    (kind, a), *rest = map(typed, operands)
    n, _ = shape_of(kind)
    if not n:
        return None
    if opcode == "extractelement":
        place = literal(rest[0][1])
        return lambda look: None if place is None else elements(a, n, look)[place]
    if opcode == "insertelement":
        (_, item), (_, index) = rest
        before, after = slice(int(index)), slice(int(index) + 1, None)
        return lambda look: (
            *elements(a, n, look)[before],
            look(item),
            *elements(a, n, look)[after],
        )
    (_, b), (chosen, places) = rest
    order = elements(places, shape_of(chosen)[0], lambda _: None)
    return lambda look: tuple(
        None if place is None else (*elements(a, n, look), *elements(b, n, look))[place]
        for place in order
    )
