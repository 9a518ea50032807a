"""Triton's interpreter, made to round like a GPU and to run several times as fast.

The changes hold for Triton 3.6 to 3.9. They are made by the session fixture ``interpreter`` in ``conftest.py``.
"""

import dataclasses
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

from rownorm_lab.interpreter import quick


def fused_multiply_add(_, x, y, z):
    """``x * y + z`` rounded once, as on a GPU and in PyTorch's own sums. The interpreter rounds the product too."""
    total = x.data.astype(np.float64) * y.data + z.data
    return interpreter.TensorHandle(total.astype(z.data.dtype), z.dtype.scalar)


def cast_float(_, src, dst_type):
    """Between floating-point types, rounded to nearest. The interpreter truncates to bf16, which numpy does not have,
    and converts bf16 subnormals to wrong numbers. Elements of bf16 are uint16 there.
    """
    given, wanted = src.dtype.scalar, dst_type.scalar
    if tl.bfloat16 not in (given, wanted) or given == wanted:
        return interpreter.TensorHandle(
            src.data.astype(interpreter._get_np_dtype(dst_type)), wanted
        )
    data = src.data
    if given == tl.bfloat16:
        data = (data.astype(np.uint32) << 16).view(np.float32)
    if wanted == tl.bfloat16:
        single = np.asarray(data, np.float32)
        bits = single.view(np.uint32)
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        data = np.where(np.isnan(single), 0x7FC0, nearest).astype(np.uint16)
    return interpreter.TensorHandle(data.astype(interpreter._get_np_dtype(dst_type)), wanted)


class LanguagePatch:
    """Replaces ``interpreter._patch_lang``, which prepares ``triton.language`` for every call of a jit function.

    The interpreter searches the language for its built-in functions whenever one jit function calls another, which
    takes more than half of the time of a kernel. Here the search is done once. The launch of a kernel applies its
    result to all of ``triton.language`` and undoes it at the end. The calls in between find the language prepared.
    """

    def __init__(self) -> None:
        everything = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
        scope = interpreter._patch_lang(everything)
        self.changes = [(owner, name, vars(owner)[name]) for owner, name, _ in scope._changes]
        scope.restore()
        self.is_applied = False

    def __call__(self, function):
        if self.is_applied:
            return SimpleNamespace(restore=lambda: None)
        scope = interpreter._LangPatchScope()
        for owner, name, value in self.changes:
            scope.set_attr(owner, name, value)
        self.is_applied = True

        def restore() -> None:
            self.is_applied = False
            scope.restore()

        return SimpleNamespace(restore=restore)


def one_at_a_time(launch):
    """Threads launch one after another: the interpreter keeps the index of the running program in a global."""
    lock = threading.RLock()

    def locked(*arguments, **options):
        with lock:
            return launch(*arguments, **options)

    return locked


def apply(patch: pytest.MonkeyPatch, *, check_overflow: bool) -> None:
    """check_overflow: whether sums and products of int32 are computed a second time in int64, and compared."""
    patch.setattr(interpreter.InterpreterBuilder, "create_fma", fused_multiply_add)
    for cast in ("create_fp_trunc", "create_fp_ext"):
        patch.setattr(interpreter.InterpreterBuilder, cast, cast_float)
    patch.setattr(interpreter, "_patch_lang", LanguagePatch())
    for owner, name, value in quick.patches():
        patch.setattr(owner, name, value)
    executor = interpreter.GridExecutor
    patch.setattr(executor, "__call__", one_at_a_time(executor.__call__))
    builder = interpreter.interpreter_builder
    options = dataclasses.replace(builder.options, sanitize_overflow=check_overflow)
    patch.setattr(builder, "options", options)
