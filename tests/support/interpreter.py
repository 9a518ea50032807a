"""Triton's interpreter, made to round like a GPU and to run several times as fast.

Both changes hold for Triton 3.6 to 3.9. They are made by the session fixture ``interpreter`` in ``conftest.py``.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter


def fused_multiply_add(_, x, y, z):
    """``x * y + z`` rounded once, as on a GPU and in PyTorch's own sums. The interpreter rounds the product too."""
    total = x.data.astype(np.float64) * y.data + z.data
    return interpreter.TensorHandle(total.astype(z.data.dtype), z.dtype.scalar)


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


def apply(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(interpreter.InterpreterBuilder, "create_fma", fused_multiply_add)
    patch.setattr(interpreter, "_patch_lang", LanguagePatch())
