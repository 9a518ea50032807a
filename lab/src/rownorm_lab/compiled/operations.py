"""The integer operations of LLVM IR on numpy arrays: what addresses, masks and loop counters are computed with.

A value is a Python int (the same in every thread), an int64 array with one number for each thread, or None: unknown.
Numbers are signed, except those of one bit. Everything that depends on an unknown value is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Value = Any  # int, int64 array or None

BINARY: dict[str, Callable[[Value, Value, int], Value]] = {
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul": lambda a, b, bits: a * b,
    "and": lambda a, b, bits: a & b,
    "or": lambda a, b, bits: a | b,
    "xor": lambda a, b, bits: a ^ b,
    "shl": lambda a, b, bits: a << b,
    "ashr": lambda a, b, bits: a >> b,
    "lshr": lambda a, b, bits: unsigned(a, bits) >> b,
    "sdiv": lambda a, b, bits: _truncating_quotient(a, b),
    "srem": lambda a, b, bits: a - b * _truncating_quotient(a, b),
    "udiv": lambda a, b, bits: unsigned(a, bits) // np.maximum(unsigned(b, bits), 1),
    "urem": lambda a, b, bits: unsigned(a, bits) % np.maximum(unsigned(b, bits), 1),
    "smin": lambda a, b, bits: np.minimum(a, b),
    "smax": lambda a, b, bits: np.maximum(a, b),
    "umin": lambda a, b, bits: np.minimum(unsigned(a, bits), unsigned(b, bits)),
    "umax": lambda a, b, bits: np.maximum(unsigned(a, bits), unsigned(b, bits)),
}
_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def binary(name: str, a: Value, b: Value, bits: int) -> Value:
    """An operation on two integers of that many bits."""
    if a is None or b is None:
        # A mask of zeros, or a false condition, hides the unknown operand.
        known = b if a is None else a
        return 0 if name == "and" and isinstance(known, int) and known == 0 else None
    with np.errstate(over="ignore"):
        return wrapped(BINARY[name](a, b, bits), bits)


def compare(predicate: str, a: Value, b: Value, bits: int) -> Value:
    """``icmp``: 0 or 1."""
    if a is None or b is None:
        return None
    if predicate[0] == "u":
        a, b = unsigned(a, bits), unsigned(b, bits)
    result = _COMPARE[predicate.lstrip("us") if predicate not in ("eq", "ne") else predicate](a, b)
    return int(result) if isinstance(result, (bool, np.bool_)) else result.astype(np.int64)


def select(condition: Value, a: Value, b: Value) -> Value:
    """``a`` where the condition holds, else ``b``."""
    if condition is None:
        return None
    if isinstance(condition, int):
        return a if condition else b
    return None if a is None or b is None else np.where(condition != 0, a, b)


def convert(name: str, a: Value, before: int, after: int) -> Value:
    """``zext``, ``sext`` and ``trunc`` of an integer."""
    if a is None:
        return None
    if name == "zext":
        return unsigned(a, before)
    if name == "sext" and before == 1:
        return -a
    return wrapped(a, after)


def wrapped(a: Value, bits: int) -> Value:
    """The number that the lowest ``bits`` bits are; those of 1 bit are 0 and 1."""
    if bits == 1:
        return a & 1
    if isinstance(a, int) or a.ndim == 0:
        half = 1 << (bits - 1)
        return ((int(a) + half) & ((1 << bits) - 1)) - half
    narrow = {8: np.int8, 16: np.int16, 32: np.int32}.get(bits)
    return a if narrow is None else a.astype(narrow).astype(np.int64)


def unsigned(a: Value, bits: int) -> Value:
    """The same bits, read as a number without a sign. 64 bits are taken for positive: they are addresses and sizes."""
    return a & ((1 << bits) - 1) if bits < 64 else a


def _truncating_quotient(a: Value, b: Value) -> Value:
    """The quotient rounded towards 0, as LLVM divides. Division by 0 happens only in threads that are masked."""
    divisor = np.where(np.asarray(b) == 0, 1, b)
    quotient = np.abs(a) // np.abs(divisor) * np.sign(a) * np.sign(divisor)
    return int(quotient) if isinstance(a, int) and isinstance(b, int) else quotient
