"""``flashinfer_bench.apply`` with the Solutions of a dataset, and with its traps removed.

The package's runtime picks the Solution with the best trace for a call. Left alone, it has these traps:

    tolerance    by default it drops every trace with a relative error above 1e-5, so all of fp16 and bf16. Here every
                 PASSED trace counts, unless the caller sets limits.
    batch        it matches the number of rows exactly. Here an unseen number gets the Solution with the most wins.
    dtype        it looks at the number of rows only. Here a call whose dtypes or columns are not the Definition's takes
                 the fallback, and so does one that needs gradients, which Solutions do not compute.
    authors      it takes the fastest Solution of any author. Here, by default, the fastest of rownorm's.

The fallback is the package's: the function that the caller passed to ``apply``.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flashinfer_bench import ApplyConfig, ApplyConfigRegistry, Definition, TraceSet
from flashinfer_bench.apply import ApplyRuntime
from torch import Tensor

from .dataset import read
from .solutions import AUTHOR

Say = Callable[[str], None]


def enable(
    folder: str | Path,
    *,
    log: bool | Say = False,
    author: str | None = AUTHOR,
    max_atol: float | None = None,
    max_rtol: float | None = None,
) -> Runtime:
    """Let ``flashinfer_bench.apply`` use the Solutions of a dataset folder that have PASSED traces.

    log: print which Solution served each call to stderr, or call this function with the line. author: None takes the
    fastest Solution of any author. max_atol, max_rtol: drop traces with larger errors. Returns the runtime; ``with
    enable(...)`` ends it, and so does ``flashinfer_bench.disable_apply()``.
    """
    dataset = read(Path(folder))
    content = dataset.content
    chosen = {
        name: [one for one in solutions if author is None or one.author == author]
        for name, solutions in content.solutions.items()
    }
    names = {one.name for solutions in chosen.values() for one in solutions}
    traces = {
        name: [one for one in of_definition if one.solution in names and one.is_successful()]
        for name, of_definition in content.traces.items()
    }
    if not any(traces.values()):
        whose = "" if author is None else f" of {author}"
        raise ValueError(
            f"{folder} has no PASSED trace of a Solution{whose}, so there is nothing to apply; "
            f"rownorm fib run {folder} measures them on a GPU"
        )
    registry = ApplyConfigRegistry(default=None)
    for name, passed in traces.items():
        if passed:
            registry.register(name, _config(passed, max_atol, max_rtol))
    noticed = Noticed(
        root=content.root, definitions=content.definitions, solutions=chosen, traces=traces
    )
    say: Say | None = log if callable(log) else _to_stderr if log else None
    with contextlib.redirect_stdout(sys.stderr):  # the package prints while it is set up
        runtime = Runtime(noticed, registry)
    runtime.say = say
    runtime.start()
    return runtime


def _config(passed: list[Any], max_atol: float | None, max_rtol: float | None) -> ApplyConfig:
    """The limits of one Definition: the caller's, else such that every PASSED trace is within them."""
    found = [one.evaluation.correctness for one in passed]
    return ApplyConfig(
        max_atol=max_atol or max(1e-2, *(one.max_absolute_error for one in found)),
        max_rtol=max_rtol or max(1e-2, *(one.max_relative_error for one in found)),
        on_miss_policy="use_def_best",
    )


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class Noticed(TraceSet):  # type: ignore[misc]
    """A TraceSet that remembers, for each thread, the last Solution that was asked for."""

    def get_solution(self, name: str) -> Any:
        """As in TraceSet."""
        solution = super().get_solution(name)
        _served.name = None if solution is None else solution.name
        return solution


_served = threading.local()


class Runtime(ApplyRuntime):  # type: ignore[misc]
    """The package's runtime, with a check of the arguments before and a line about the Solution after each call."""

    say: Say | None = None

    def dispatch(
        self,
        def_name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fallback: Callable[..., Any] | None,
    ) -> Any:
        """As in ApplyRuntime."""
        definition = self._trace_set.definitions.get(def_name)
        why = "" if definition is None else unsuitable(definition, args, kwargs)
        if why:
            if fallback is None:
                raise ValueError(f"{def_name}: {why}, and there is no fallback")
            self._tell(f"{def_name}: fallback, because {why}")
            return fallback(*args, **kwargs)
        _served.name = None
        result = super().dispatch(def_name, args, kwargs, fallback)
        self._tell(f"{def_name}: {_served.name or 'fallback, because no Solution has a trace'}")
        return result

    def _tell(self, line: str) -> None:
        if self.say is not None:
            self.say(line)


def unsuitable(definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a Solution of this Definition cannot take these arguments; empty if it can."""
    names = [*definition.inputs, *definition.outputs]
    specs = {**definition.inputs, **definition.outputs}
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    dtypes = dict(
        zip(names, [*definition.torch_input_dtypes, *definition.torch_output_dtypes], strict=True)
    )
    sizes = definition.const_axes
    devices = set()
    for name, value in given.items():
        if name not in specs:
            return f"there is no argument {name}"
        axes = specs[name].shape
        if axes is None:
            continue
        if not isinstance(value, Tensor):
            return f"{name} is {type(value).__name__}, not a tensor"
        if value.dtype != dtypes[name]:
            return f"{name} is {value.dtype}, not {dtypes[name]}"
        if value.dim() != len(axes):
            return f"{name} has {value.dim()} dimensions, not {len(axes)}"
        for axis, size in zip(axes, value.shape, strict=True):
            if sizes.get(axis, size) != size:
                return f"{name} has {size} in {axis}, not {sizes[axis]}"
        if value.requires_grad and torch.is_grad_enabled():
            return f"{name} needs a gradient"
        devices.add(value.device)
    return "the tensors are on several devices" if len(devices) > 1 else ""
