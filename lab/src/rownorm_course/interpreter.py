"""Triton's interpreter, in which kernels run without a GPU.

A learner's file imports ``DEVICE`` before Triton, because Triton chooses the interpreter when it is imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and "TRITON_INTERPRET" not in os.environ:
    if "triton" in sys.modules:
        raise ImportError(
            "there is no GPU, and Triton was imported before its interpreter was chosen: import "
            "rownorm_course.interpreter first, or set TRITON_INTERPRET=1"
        )
    os.environ["TRITON_INTERPRET"] = "1"


def accept_arrays_of_one() -> None:
    """Let ``range(0, n_cols, BLOCK)`` work in a kernel with Triton 3.6 and NumPy 2.4.

    The interpreter holds a scalar as an array of one element. Triton 3.6 calls int() on it, which NumPy 2.4 refuses.
    """
    import numpy
    import triton
    from triton.runtime import interpreter

    numpy_refuses = numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0"
    if not triton.__version__.startswith("3.6.") or not numpy_refuses:
        return
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if os.environ.get("TRITON_INTERPRET") == "1":
    accept_arrays_of_one()
