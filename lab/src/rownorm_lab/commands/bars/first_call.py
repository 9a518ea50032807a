"""Count the kernels that the first calls of an operation compile, as Triton reports them.

    TRITON_CACHE_DIR=$(mktemp -d) python -m rownorm_lab.commands.bars.first_call rms_norm 4096

prints one line of JSON. ``measure`` starts it for several widths, each in a new process with an empty cache.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import torch
from triton import knobs

import rownorm

from .figures import OTHER_ROWS, ROWS, FirstCall


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collects the names of the kernels that Triton compiles inside; kernels from its disk cache do not count."""
    names: list[str] = []

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            names.append(src.name)

    with mock.patch.object(knobs.compilation, "listener", listen):
        yield names


def count(operation: str, cols: int) -> FirstCall:
    """Make the calls on this GPU: inference, training, then both with other numbers of rows."""
    function = getattr(rownorm, operation)
    new: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    weight = torch.ones(cols, requires_grad=True, **new)
    bias = torch.zeros(cols, requires_grad=True, **new) if operation == "layer_norm" else None

    def infer(rows: int) -> None:
        with torch.no_grad():
            function(torch.randn(rows, cols, **new), weight, bias)

    def train(rows: int) -> torch.Tensor:
        return function(torch.randn(rows, cols, requires_grad=True, **new), weight, bias)

    compiled = {}
    with compilations() as compiled["forward"]:
        infer(ROWS)
    with compilations() as compiled["training forward"]:
        y = train(ROWS)
    with compilations() as compiled["backward"]:
        torch.autograd.backward(y, torch.ones_like(y))
    with compilations() as compiled["other rows"]:
        for rows in OTHER_ROWS:
            infer(rows)
            y = train(rows)
            torch.autograd.backward(y, torch.ones_like(y))
    torch.cuda.synchronize()
    return FirstCall(
        operation=operation, cols=cols, compiled=compiled, device=torch.cuda.get_device_name()
    )


def main() -> None:
    """Count for the arguments OPERATION COLS, and print a ``FirstCall`` as JSON."""
    if not torch.cuda.is_available():
        sys.exit("kernels are compiled for a GPU only, and torch sees none")
    operation, cols = sys.argv[1:]
    print(msgspec.json.encode(count(operation, int(cols))).decode())


if __name__ == "__main__":
    main()
