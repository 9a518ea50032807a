"""Ranges around the norms of a script that knows nothing of it.

Before the script runs, ``F.layer_norm`` and ``F.rms_norm`` are wrapped; torch's modules call them. Other modules that
look like norms (``rownorm.patch`` decides whether they are) get ranges through hooks of all modules. The name of a
range tells what it is around: ``norm|LlamaRMSNorm|rms_norm|forward|2048x4096|bf16|17``; the last is the number of the
call, which the ranges of its backward nodes have too. Compiled code has no ranges.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import record_function

from rownorm.inside import SHORT_NAMES, LeftAlone, candidate_of, is_norm_by_name

from ...models.ranges import record_backward
from ...profilers.norms import PREFIX

FUNCTIONS = ("layer_norm", "rms_norm")
_numbers = itertools.count()  # of calls


@contextmanager
def norm_ranges() -> Iterator[None]:
    """Record a range around every norm that runs inside, forward and backward."""
    modules = _Modules()
    originals = {name: getattr(F, name) for name in FUNCTIONS}
    for name, function in originals.items():
        setattr(F, name, _ranged(function, name))
    handles = [
        register_module_forward_pre_hook(modules.enter),
        register_module_forward_hook(modules.leave),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        modules.close()
        for name, function in originals.items():
            setattr(F, name, function)


def _names(what: str, operation: str, x: Tensor) -> tuple[str, str]:
    """The names of the ranges of one call: (forward, backward). x: (..., n_cols)."""
    rows, cols = x.numel() // max(1, x.shape[-1]), x.shape[-1]
    start = f"{PREFIX}|{what}|{operation}"
    end = f"{rows}x{cols}|{SHORT_NAMES.get(x.dtype, str(x.dtype))}|{next(_numbers)}"
    return f"{start}|forward|{end}", f"{start}|backward|{end}"


def _ranged(function: Callable[..., Tensor], operation: str) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def call(input: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if torch.compiler.is_compiling() or not isinstance(input, Tensor) or not input.dim():
            return function(input, *arguments, **options)
        forward, backward = _names(f"F.{operation}", operation, input)
        with record_function(forward):
            y = function(input, *arguments, **options)
        record_backward((y,), (input,), backward)
        return y

    return call


class _Modules:
    """Ranges around modules that are norms but not torch's."""

    def __init__(self) -> None:
        self.operations: dict[type, str | None] = {}
        self.open: dict[int, tuple[Any, str]] = {}  # by the identity of a module that runs

    def enter(self, module: nn.Module, inputs: Any) -> None:
        """The hook before forward."""
        if torch.compiler.is_compiling() or not is_norm_by_name(module):
            return
        kind = type(module)
        if kind not in self.operations:
            self.operations[kind] = _operation(module)
        operation = self.operations[kind]
        if operation and inputs and isinstance(inputs[0], Tensor) and inputs[0].dim():
            forward, backward = _names(kind.__name__, operation, inputs[0])
            span = record_function(forward)
            span.__enter__()
            self.open[id(module)] = span, backward

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """The hook after forward."""
        if (found := self.open.pop(id(module), None)) is not None:
            span, backward = found
            span.__exit__(None, None, None)
            if isinstance(output, Tensor):
                record_backward((output,), (inputs[0],), backward)

    def close(self) -> None:
        """End the ranges of modules whose forward failed: a profiler must not stop inside a range."""
        for span, _ in self.open.values():
            span.__exit__(None, None, None)
        self.open.clear()


def _operation(module: nn.Module) -> str | None:
    """The operation to compare a module with; None for torch's own, rownorm's, and what is no norm of rows."""
    if type(module).__module__.startswith(("torch.", "rownorm.")):
        return None
    try:
        candidate = candidate_of(module)
    except LeftAlone:
        return None
    if candidate is None:
        return None
    return "layer_norm" if len(candidate.tensors) == 2 else "rms_norm"
