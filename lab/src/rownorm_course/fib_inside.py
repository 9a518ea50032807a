"""What exercise 6 has FlashInfer-Bench do with a learner's code, in the learner's process."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import observe


def check_dataset(folder: Path, device: str) -> list[tuple[int | None, str, str]]:
    """(rows, status, why) of every Solution and workload. Solutions are built away from the learner's folder."""
    from rownorm_lab.fib.check import Checked, check
    from rownorm_lab.fib.dataset import read

    with _away_from(Path.cwd()):
        checked = check(read(folder), "cuda:0" if device == "cuda" else "cpu")
        return [
            (one.rows, one.status, one.why)
            if isinstance(one, Checked)
            else (None, "failed", str(one))
            for one in checked
        ]


def what_ran(folder: Path, device: str) -> tuple[list[str], int, int]:
    """(PyTorch's operators, kernels, values that no kernel stored) of one call of the only Solution."""
    from flashinfer_bench.compile import BuilderRegistry

    from rownorm_lab.fib.dataset import read

    content = read(folder).content
    (definition,), ((solution,),) = content.definitions.values(), content.solutions.values()
    rows, cols = 2, definition.axes["hidden"].value
    x, weight = (
        torch.randn(rows, cols, device=device).half(),
        torch.rand(cols, device=device).half(),
    )
    with _away_from(Path.cwd()):
        run = BuilderRegistry.get_instance().build(definition, solution)
        with observe.observed(given=(x, weight)) as raw:
            out = [torch.empty_like(x)] if solution.spec.destination_passing_style else []
            found = run(x, weight, 1e-6, *out)
    foreign = raw.provenance.foreign(out or found) if raw.provenance is not None else 0
    return sorted(set(raw.operators)), len(raw.launches), foreign


@contextmanager
def _away_from(folder: Path) -> Iterator[None]:
    """Without the modules of the learner's folder and what was built before, as on another machine."""
    modules, paths = dict(sys.modules), list(sys.path)
    for name, module in modules.items():
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]
    sys.path[:] = [path for path in paths if Path(path) != folder]
    try:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["FIB_CACHE_PATH"] = cache
            yield
    finally:
        sys.modules.update(modules)
        sys.path[:] = paths


def reference(code: str, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What the reference of a Definition computes."""
    space: dict[str, Any] = {}
    exec(code, space)
    found: Tensor = space["run"](x, weight, eps)
    return found
