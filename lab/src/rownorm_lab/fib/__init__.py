"""FlashInfer-Bench: rownorm's kernels as Solutions that its own tools build, run, time and apply.

    definition.py   the norm that a Definition describes; Definitions and Workloads of two conventions
    recognize.py    which norm a Definition of another author computes, proved by its reference
    bundle.py       the library's own source files, for a Solution that runs without rownorm
    solutions.py    three Solutions for a Definition: self-contained, the installed package, PyTorch
    dataset.py      a dataset folder: reading it file by file, writing it
    check.py, run.py, traces.py, applied.py    checking, running, reading traces, applying
    for_flashinfer.py    a dataset that FlashInfer itself applies; needs no FlashInfer-Bench

Nothing here imitates the package: its classes validate, its builders build, its runner times, its runtime applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .applied import enable as enable


def __getattr__(name: str) -> Any:
    """``enable`` is imported when it is used, because FlashInfer-Bench is optional."""
    if name == "enable":
        from .applied import enable

        return enable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
