"""RMSNorm with ReLU in two ways, and the bytes that each moves between the GPU and its memory, counted by ncu.

``python -m rownorm_lab.commands.tune.counted WAY OPERATION ROWS COLS DTYPE`` is what ncu profiles: one call.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

import rownorm

from ...data.case import Case
from ...measure.timing import call_for_ncu
from ...profilers.ncu_csv import COUNTING, PRINTING, parse
from ...providers import data

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
LIMIT_S = 120


def call_of(way: str, case: Case, t: data.Tensors) -> Callable[[], Any]:
    """One of the two ways to RMSNorm with ReLU, fused or in two steps; case: without the activation, or with it."""
    norm = getattr(rownorm, case.operation)
    arguments = (t.x, t.weight, t.bias)
    if way == "fused":
        return lambda: norm(*arguments, eps=case.eps, activation="relu")
    return lambda: torch.relu(norm(*arguments, eps=case.eps))


def memory_bytes(ways: Sequence[str], case: Case) -> tuple[list[float | None], str]:
    """(bytes of one call of each way, why they are not known). Both from the same tool, or none."""
    ncu = shutil.which("ncu")
    unknown: list[float | None] = [None] * len(ways)
    if ncu is None:
        return unknown, "bytes were not measured: ncu was not found; install Nsight Compute"
    found: list[float | None] = []
    for way in ways:
        try:
            found.append(_counted(ncu, way, case))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return unknown, f"bytes were not measured: {' '.join(str(error).split())[:300]}"
    return found, ""


def _counted(ncu: str, way: str, case: Case) -> float:
    """The sum over all kernels of one call. PermissionError if the driver denies the counters."""
    command = [ncu, *PRINTING, *COUNTING, "--metrics", ",".join(METRICS)]
    command += [sys.executable, "-m", __name__]
    command += [way, case.operation, str(case.rows), str(case.cols), case.dtype]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    kernels = parse(ran.stdout)
    if not kernels:
        raise ValueError(f"ncu counted no kernel: {ran.stderr.strip()[-200:]}")
    return sum(kernel.metrics[name] for kernel in kernels for name in METRICS)


def main(way: str, operation: str, rows: str, cols: str, dtype: str) -> None:
    """One call between the start and the end of what ncu profiles."""
    case = Case(operation=operation, rows=int(rows), cols=int(cols), dtype=dtype)  # type: ignore[arg-type]
    [tensors] = data.rotation(case, 1, "cuda")
    call_for_ncu(call_of(way, case, tensors))


if __name__ == "__main__":
    main(*sys.argv[1:])
