"""Triton's interpreter, before kernels are measured or checked in it."""

from __future__ import annotations

from importlib.util import find_spec

from ..providers import interpreting


def prepare_interpreter() -> None:
    """Let kernels run in Triton's interpreter with the NumPy that is here, where Triton is there and interprets."""
    if interpreting() and find_spec("triton"):
        from ..interpreter.arithmetic import mend_scalars

        mend_scalars()
