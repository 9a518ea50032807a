"""What exercise 6 has FlashInfer-Bench do with a learner's code, in the learner's process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor


def check_dataset(folder: Path, device: str) -> list[tuple[int | None, str, str]]:
    """(rows, status, why) of every Solution and workload. Solutions are built away from the learner's folder."""
    from rownorm_lab.fib.check import Checked, check
    from rownorm_lab.fib.dataset import read

    with tempfile.TemporaryDirectory() as cache:
        os.environ["FIB_CACHE_PATH"] = cache
        checked = check(read(folder), "cuda:0" if device == "cuda" else "cpu")
        return [
            (one.rows, one.status, one.why)
            if isinstance(one, Checked)
            else (None, "failed", str(one))
            for one in checked
        ]


def reference(code: str, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What the reference of a Definition computes."""
    space: dict[str, Any] = {}
    exec(code, space)
    found: Tensor = space["run"](x, weight, eps)
    return found
