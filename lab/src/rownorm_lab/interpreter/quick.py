"""Triton's interpreter, faster, with the same results. It holds for Triton 3.6 to 3.9.

For every intermediate result it makes a type: it checks the shape, writes a name, and wraps each size in a constant. It
makes a table of all dtypes whenever it needs NumPy's for one, and a block of every number that an operation is given.
It computes each sum of 32-bit integers three times, to find an overflow. That takes longer than the arithmetic. Here
the answers are kept, and NumPy finds the overflow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

# An operation of two operands with the same of these dtypes converts neither.
UNCHANGED = {"fp32", "fp64", "int1", "int32", "int64", "uint32"}
OFFSETS = {"int32", "int64"}
MOST_BLOCKS, MOST_LANES = 1024, 4096  # of numbers that are kept, and of one of them
SUMS: dict[str, Callable[..., Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def patches() -> list[tuple[Any, str, Any]]:
    """(owner, name, value) of everything that is replaced; none where that was done before."""
    if getattr(tl.block_type.__init__, "quick", False):
        return []
    return [
        *_types(),
        *_operands(),
        (interpreter, "_get_np_dtype", _np_dtype(interpreter._get_np_dtype)),
        (
            TritonSemantic,
            "binary_op_sanitize_overflow_impl",
            _overflow(TritonSemantic.binary_op_sanitize_overflow_impl),
        ),
    ]


def _types() -> list[tuple[Any, str, Any]]:
    """What types and tensors have of their shape is kept."""
    block_type, tensor = tl.block_type, tl.tensor
    make_type, are_same, make_tensor = block_type.__init__, block_type.__eq__, tensor.__init__
    with_type, unwrap = block_type.with_element_ty, tl.core._unwrap_if_constexpr
    plain = {tensor, int, float, bool, str, type(None)}
    types: dict[Any, dict[str, Any]] = {}
    others: dict[Any, Any] = {}
    shapes: dict[Any, Any] = {}
    extents: dict[Any, dict[str, Any]] = {}

    def init_type(self: Any, element_type: Any, shape: Any) -> None:
        sizes = tuple([s.value if isinstance(s, tl.constexpr) else s for s in shape])
        if any(type(size) is not int for size in sizes):
            make_type(self, element_type, shape)  # an error, which Triton explains
            return
        key = (element_type.name, sizes)
        if element_type.is_ptr() or key not in types:
            make_type(self, element_type, shape)
            self.shape = shapes.setdefault(sizes, self.shape)
            types[key] = dict(vars(self))
        else:
            vars(self).update(types[key])

    def with_element_type(self: Any, element_type: Any) -> Any:
        if element_type.is_ptr():
            return with_type(self, element_type)
        key = (element_type.name, self.shape)
        if key not in others:
            others[key] = with_type(self, element_type)
        return others[key]

    def types_are_same(self: Any, other: Any) -> bool:
        if isinstance(other, block_type) and self.shape is other.shape:
            return bool(self.element_ty == other.element_ty)
        return bool(are_same(self, other))

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = type.shape if type.is_block() else ()
        if sizes not in extents:
            make_tensor(self, handle, type)
            extents[sizes] = {"shape": self.shape, "numel": self.numel}
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            vars(self).update(extents[sizes])

    def unwrapped(value: Any) -> Any:
        kind = type(value)
        if kind is tl.constexpr:
            return value.value
        return value if kind in plain else unwrap(value)

    init_type.quick = True  # type: ignore[attr-defined]
    return [
        (block_type, "__init__", init_type),
        (block_type, "__eq__", types_are_same),
        (block_type, "with_element_ty", with_element_type),
        (tensor, "__init__", init_tensor),
        (tl.core, "_unwrap_if_constexpr", unwrapped),
    ]


def _operands() -> list[tuple[Any, str, Any]]:
    """The two sides of an operation: nothing is to be done if they are alike, and the block of a number is kept."""
    broadcast = TritonSemantic.broadcast_impl_value
    check = TritonSemantic.binary_op_type_checking_impl
    blocks: dict[Any, Any] = {}

    def broadcast_values(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if not left.is_block():
            return (splat(self, lhs, right) if right.is_block() else lhs), rhs
        if not right.is_block():
            return lhs, splat(self, rhs, left)
        return (lhs, rhs) if left.shape is right.shape else broadcast(self, lhs, rhs)

    def splat(self: Any, scalar: Any, like: Any) -> Any:
        kind = like.with_element_ty(scalar.type.scalar)
        return self.tensor(self.builder.create_splat(kind, scalar.handle), kind)

    def checked(self: Any, lhs: Any, rhs: Any, *options: Any, **named: Any) -> Any:
        kind, other = type(lhs), type(rhs)
        if kind is tl.tensor and other is tl.tensor:
            left, right = lhs.dtype, rhs.dtype
            if left.name in UNCHANGED and left.name == right.name:
                return broadcast_values(self, lhs, rhs)
            if left.is_ptr() and right.name in OFFSETS and options[:1] == (True,):
                return broadcast_values(self, lhs, rhs)  # a pointer is allowed on this side
        elif kind is tl.tensor and (other is float or other is int):
            return with_number(self, lhs, rhs, other, 1, options, named)
        elif other is tl.tensor and (kind is float or kind is int):
            return with_number(self, rhs, lhs, kind, 0, options, named)
        return check(self, lhs, rhs, *options, **named)

    def with_number(
        self: Any, block: Any, number: Any, kind: Any, place: int, options: Any, named: Any
    ) -> Any:
        shape = block.type.shape if block.type.is_block() else ()
        key = (place, kind, number, block.dtype.name, shape, options, *named.items())
        if key in blocks:
            return (block, blocks[key]) if place else (blocks[key], block)
        both = (block, number) if place else (number, block)
        made = check(self, *both, *options, **named)
        if made[1 - place] is block and made[place].handle.data.size <= MOST_LANES:
            if len(blocks) == MOST_BLOCKS:
                blocks.clear()
            blocks[key] = made[place]
        return made

    return [
        (TritonSemantic, "broadcast_impl_value", broadcast_values),
        (TritonSemantic, "binary_op_type_checking_impl", checked),
    ]


def _np_dtype(search: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known, of_pointers = functools.cache(search), search(tl.pointer_type(tl.int8))
    return lambda dtype: of_pointers if dtype.scalar.is_ptr() else known(dtype.scalar)


def _overflow(check: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, lhs: Any, rhs: Any, operation: Any) -> None:
        kind, of_numpy = lhs.type.scalar, SUMS.get(operation.__name__)
        if kind.int_bitwidth >= 64 or not self.builder.options.sanitize_overflow:
            return
        if of_numpy is not None:
            wide = of_numpy(lhs.handle.data.astype(np.int64), rhs.handle.data.astype(np.int64))
            if wide.min() >= kind.get_int_min_value() and wide.max() <= kind.get_int_max_value():
                return
        check(self, lhs, rhs, operation)  # an error with options.debug, and nothing without

    return checked
