"""Triton's interpreter, in which kernels run without a GPU.

A learner's file imports ``DEVICE`` before Triton, because Triton chooses the interpreter when it is imported. The
interpreter's arithmetic is mended on the way, as in a check.
"""

from __future__ import annotations

import os
import sys

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and "TRITON_INTERPRET" not in os.environ:
    if "triton" in sys.modules:
        raise ImportError(
            "there is no GPU, and Triton was imported before its interpreter was chosen: import "
            "rownorm_course.interpreter first, or set TRITON_INTERPRET=1"
        )
    os.environ["TRITON_INTERPRET"] = "1"


if os.environ.get("TRITON_INTERPRET") == "1":
    from rownorm_lab.interpreter.arithmetic import mend

    mend()
