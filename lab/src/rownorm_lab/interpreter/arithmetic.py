"""Arithmetic of Triton's interpreter that differs from a GPU's, mended.

The interpreter keeps bfloat16 as 16-bit integers and computes with those: the product of two bf16 values is wrong, a
conversion from fp32 cuts digits off, and ``tl.full`` in bf16 raises. A GPU computes in fp32 and rounds to the nearest.
Functions of libdevice return nothing there. ``tl.reduce`` with a function of one's own goes from lane to lane, which
rounds worse than the tree of a GPU and takes a call for each lane. ``@triton.autotune`` asks for a GPU. Of two blocks
in ``a and b`` it takes the second: that is an error here, because no mask is then what it says. Triton 3.6 cannot turn
a scalar into an int with NumPy 2.4.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.language import semantic
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

from ..data.no_gpu import first_configuration
from . import quick
from .patches import Patch, around, patched

Array = np.ndarray[Any, Any]
TRITON = str(Path(triton.__file__).parent)
SEMANTICS = semantic.__file__
IN_FP32 = ("binary_op", "unary_op", "create_fma", "create_rsqrt")  # of the builder
LIBDEVICE: dict[str, Callable[[Array], Array]] = {  # by name: of one argument
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "sin": np.sin,
    "cos": np.cos,
    "rcp_rn": np.reciprocal,
    "erf": lambda x: interpreter.np_erf_fp64(x).astype(x.dtype),
}


@contextmanager
def mended() -> Iterator[None]:
    """Mend the interpreter in the block. Overflow in a kernel is no warning of NumPy."""
    with patched(_patches()), np.errstate(all="ignore"):
        yield


def mend() -> None:
    """Mend the interpreter in this process."""
    for owner, name, value in _patches():
        setattr(owner, name, value)


def mend_scalars() -> None:
    """Let NumPy 2.4 run Triton 3.6's interpreter, whose results stay what they are. In this process, more than once."""
    interpreter._patch_lang_tensor = _with_ints(interpreter._patch_lang_tensor)


def _patches() -> list[Patch]:
    """Everything that is replaced; nothing where that was done before."""
    builder = interpreter.InterpreterBuilder
    if getattr(builder, "get_bf16", None) is _bf16:
        return []
    with_ints = _with_ints(interpreter._patch_lang_tensor)
    return [
        *(around(builder, name, _in_fp32) for name in IN_FP32),
        around(builder, "create_dot", _dot),
        around(builder, "cast_impl", _cast),
        around(builder, "create_fp_to_fp", _fp_to_fp),
        (builder, "get_bf16", _bf16),
        (interpreter, "_patch_lang_tensor", partial(_tensors, with_ints)),
        around(interpreter.ReduceOps, "apply", _reduce),
        around(interpreter.ReduceOps, "generic_reduce", _by_a_tree),
        *(
            (libdevice, name, _of_numpy(function))
            for name, function in LIBDEVICE.items()
            if hasattr(libdevice, name)
        ),
        *quick.patches(),
        (Autotuner, "run", first_configuration()),
    ]


# ---- tensors ----


def _with_ints(patch: Callable[..., None]) -> Callable[..., None]:
    """For ``range(0, n_cols, BLOCK)`` a scalar becomes an int. It is an array of one element; Triton 3.6 calls int() on
    it, which NumPy 2.4 refuses.
    """
    refused = np.lib.NumpyVersion(np.__version__) >= "2.4.0"
    refused = refused and triton.__version__.startswith("3.6.")
    if not refused or getattr(patch, "gives_ints", False):
        return patch

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch_lang_tensor.gives_ints = True  # type: ignore[attr-defined]
    return patch_lang_tensor


def _tensors(patch: Callable[..., None], tensor: Any, scope: Any) -> None:
    """What Python's operators make of a tensor.

    A block is neither true nor false; Triton's own code may ask, and always gets True. Its semantics ask ``if other``
    for whether there is one, so that ``other=0.0`` of a scalar load would be none.
    """
    patch(tensor, scope)
    truth = tensor.__bool__

    def is_true(value: Any) -> bool:
        asking = sys._getframe(1).f_code.co_filename
        if asking == SEMANTICS:
            return True
        if value.handle.data.size > 1 and not asking.startswith(TRITON):
            raise ValueError(
                "a block of lanes is neither true nor false. Between masks, write & for and, | for or, ~ for not, "
                "with each comparison in parentheses: (rows < n_rows) & (cols < n_cols)"
            )
        return bool(truth(value))

    scope.set_attr(tensor, "__bool__", is_true)


# ---- bfloat16 ----


def widen(handle: Any) -> Any:
    """A bf16 handle as fp32; any other as it is."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = np.asarray(handle.data, np.uint16).astype(np.uint32) << np.uint32(16)
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


def narrow(values: Array) -> Any:
    """fp32 values as a bf16 handle, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + even) >> np.uint64(16)).astype(np.uint16)
    quiet = (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    data = np.where(np.isnan(values), quiet, rounded)
    return interpreter.TensorHandle(data.reshape(np.shape(values)), tl.bfloat16)


def _bf16(_: Any, value: float) -> Any:
    return narrow(np.array([value], np.float32))


def _in_fp32(operation: Callable[..., Any], builder: Any, *arguments: Any) -> Any:
    """An operation on handles: bf16 goes through fp32. Comparisons stay what they are."""
    handles = [one for one in arguments if isinstance(one, interpreter.TensorHandle)]
    if not any(one.dtype.scalar == tl.bfloat16 for one in handles):
        return operation(builder, *arguments)
    wide = [widen(one) if isinstance(one, interpreter.TensorHandle) else one for one in arguments]
    made = operation(builder, *wide)
    return narrow(made.data) if made.data.dtype.kind == "f" else made


def _dot(operation: Callable[..., Any], builder: Any, a: Any, b: Any, *rest: Any) -> Any:
    return operation(builder, widen(a), widen(b), *rest)


def _cast(operation: Callable[..., Any], builder: Any, source: Any, target: Any) -> Any:
    if source.dtype.scalar == target.scalar:
        return operation(builder, source, target)
    if target.scalar == tl.bfloat16:
        return narrow(np.asarray(widen(source).data).astype(np.float32))
    return operation(builder, widen(source), target)


def _fp_to_fp(
    operation: Callable[..., Any], builder: Any, source: Any, target: Any, rounding: Any
) -> Any:
    wide = widen(source)
    if target.scalar == tl.bfloat16 and source.dtype.scalar in (tl.float32, tl.float64):
        return narrow(np.asarray(wide.data).astype(np.float32))
    if wide is not source and target.scalar == tl.float32:
        return wide
    return operation(builder, source, target, rounding)


def _reduce(operation: Callable[..., Any], reduction: Any, values: Any) -> Any:
    """A reduction of bf16 values, in fp32."""
    many = values if isinstance(values, tuple) else (values,)
    if not any(one.dtype == tl.bfloat16 for one in many):
        return operation(reduction, values)
    wide = tuple(_tensor(widen(one.handle)) for one in many)
    made = operation(reduction, wide)
    back = tuple(
        _tensor(narrow(new.handle.data)) if old.dtype == tl.bfloat16 else new
        for old, new in zip(many, made, strict=True)
    )
    return back if isinstance(values, tuple) else back[0]


def _tensor(handle: Any) -> Any:
    scalar = handle.dtype.scalar
    shape = list(np.shape(handle.data))
    kind = tl.block_type(scalar, shape) if np.size(handle.data) > 1 else scalar
    return tl.core.tensor(handle, kind)


# ---- reductions with a function of one's own ----


def _by_a_tree(operation: Callable[..., Any], reduction: Any, values: Any) -> Any:
    """Neighbors first, so that the function must be associative and need not be commutative, as Triton demands."""
    whole = [np.asarray(one.handle.data) for one in values]
    arrays = whole if reduction.axis is not None else [one.reshape(-1) for one in whole]
    axis, kinds = reduction.axis or 0, [one.dtype.scalar for one in values]
    size = arrays[0].shape[axis] if arrays[0].ndim else 0
    if size < 1 or size & (size - 1):
        return operation(reduction, values)
    while arrays[0].shape[axis] > 1:
        pairs = [
            reduction.to_tensor(np.take(one, range(first, one.shape[axis], 2), axis), kind)
            for first in (0, 1)
            for one, kind in zip(arrays, kinds, strict=True)
        ]
        made = reduction.combine_fn.fn(*pairs)
        many = made if isinstance(made, tuple) else (made,)
        shape = pairs[0].handle.data.shape
        arrays = [
            np.broadcast_to(new.handle.data, shape).astype(old.dtype)
            if isinstance(new, tl.tensor)
            else np.full(shape, new, old.dtype)
            for new, old in zip(many, arrays, strict=True)
        ]
    if not reduction.keep_dims:
        arrays = [one.squeeze(axis) for one in arrays]
    elif reduction.axis is None:
        arrays = [one.reshape((1,) * whole[0].ndim) for one in arrays]
    return [reduction.to_tensor(one, kind) for one, kind in zip(arrays, kinds, strict=True)]


# ---- functions that are missing ----


def _of_numpy(function: Callable[[Array], Array]) -> Callable[..., Any]:
    def call(x: Any, **_: Any) -> Any:
        if not isinstance(x, tl.tensor):
            x = interpreter.interpreter_semantic.to_tensor(x)
        data = function(x.handle.data).astype(x.handle.data.dtype)
        return tl.core.tensor(interpreter.TensorHandle(data, x.handle.dtype), x.type)

    return call
