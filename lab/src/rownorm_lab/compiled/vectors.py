"""Vectors of integers in LLVM IR, which the compiler makes of neighboring masks. A vector is a tuple of values."""

from __future__ import annotations

import re
from collections.abc import Callable

from .llir import Instruction, split_operands
from .operations import BINARY, Value, binary, compare, convert, select

Lookup = Callable[[str], Value]
Compute = Callable[[Lookup], Value]
_TYPE = r"<(\d+) x i(\d+)>"


def vector_operation(one: Instruction, text: str) -> Compute | None:
    """What an instruction on vectors of integers computes; None for all other instructions. text: without flags."""
    operands = split_operands(text)
    if one.opcode in BINARY and (found := re.match(rf"{_TYPE} (.*)", operands[0])):
        n, bits, name = int(found[1]), int(found[2]), one.opcode
        a, b = found[3], operands[1]
        return lambda look: _each(
            lambda x, y: binary(name, x, y, bits), _elements(a, n, look), _elements(b, n, look)
        )
    if one.opcode == "icmp" and (found := re.match(rf"(\w+) {_TYPE} (.*)", operands[0])):
        predicate, n, bits = found[1], int(found[2]), int(found[3])
        a, b = found[4], operands[1]
        return lambda look: _each(
            lambda x, y: compare(predicate, x, y, bits),
            _elements(a, n, look),
            _elements(b, n, look),
        )
    if one.opcode == "select" and (found := re.match(rf"{_TYPE} (.*)", operands[1])):
        n, a, b = int(found[1]), found[3], operands[2].split("> ", 1)[1]
        condition = operands[0].split(" ")[-1]
        return lambda look: _each(
            select, _elements(condition, n, look), _elements(a, n, look), _elements(b, n, look)
        )
    if one.opcode in ("zext", "sext", "trunc") and (found := re.match(_TYPE, text)):
        source, _, after = operands[0].removeprefix(f"{found[0]} ").rpartition(" to ")
        to = re.match(_TYPE, after)
        assert to is not None
        n, before_bits, after_bits, name = int(found[1]), int(found[2]), int(to[2]), one.opcode
        return lambda look: _each(
            lambda x: convert(name, x, before_bits, after_bits), _elements(source, n, look)
        )
    return _moved(one, text, operands)


def _moved(one: Instruction, text: str, operands: list[str]) -> Compute | None:
    """Instructions that take vectors apart or put them together."""
    found = re.match(rf"{_TYPE} (.*)", operands[0])
    if found is None:
        return None
    n, a = int(found[1]), found[3]
    if one.opcode == "extractelement":
        index = operands[1].split(" ")[-1]
        return lambda look: _elements(a, n, look)[int(index)] if index.isdecimal() else None
    if one.opcode == "insertelement":
        item, index = operands[1].split(" ")[-1], operands[2].split(" ")[-1]
        return lambda look: (
            *_elements(a, n, look)[: int(index)],
            look(item),
            *_elements(a, n, look)[int(index) + 1 :],
        )
    if one.opcode == "shufflevector":
        b = operands[1].split("> ", 1)[1]
        size = re.match(_TYPE, operands[2])
        assert size is not None
        order = _elements(operands[2].split("> ", 1)[1], int(size[1]), lambda _: None)
        return lambda look: tuple(
            None if place is None else (*_elements(a, n, look), *_elements(b, n, look))[place]
            for place in order
        )
    if one.opcode == "freeze":
        return lambda look: _elements(a, n, look)
    return None


def _each(function: Callable[..., Value], *vectors: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(function(*items) for items in zip(*vectors, strict=True))


def _elements(operand: str, n: int, look: Lookup) -> tuple[Value, ...]:
    """The elements of a register or a constant; unknown ones are None."""
    if operand.startswith("%"):
        value = look(operand)
        # The condition of a select may be one for all elements.
        return value if isinstance(value, tuple) else (value,) * n
    if operand == "zeroinitializer":
        return (0,) * n
    if found := re.fullmatch(r"splat \(i\d+ (-?\d+|true|false)\)", operand):
        return (_literal(found[1]),) * n
    if operand.startswith("<"):
        return tuple(_literal(part.split(" ")[-1]) for part in split_operands(operand[1:-1]))
    return (None,) * n


def _literal(text: str) -> Value:
    if text in ("true", "false"):
        return int(text == "true")
    return int(text) if re.fullmatch(r"-?\d+", text) else None
