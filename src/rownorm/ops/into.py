"""The norm of some tensors, stored to tensors that exist.

For frameworks that pass the outputs (destination passing), such as FlashInfer-Bench. The public functions allocate
their outputs themselves, so this file prepares the same kernel calls with the outputs as further tensors, and keeps
them by the same key. The lab copies this file, with all that it imports, into a Solution that needs no rownorm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..launch.forward import steps
from ..launch.launcher import INTERPRETING, bind_all
from ..launch.planning import plan
from ..launch.problem import forward_problem
from ..launch.rows import allocator, readable, unreadable
from ..program import Inputs, Program
from ..reference import forward
from .call_key import tensor_key

Tensors = tuple[Tensor | None, ...]  # x, residual, weight, bias, y, h
Run = Callable[[Tensors, list[int | None]], Any]

MAX_PREPARED = 4096  # when there are more, all of them are dropped
_prepared: dict[Any, Run] = {}


def norm_into(tensors: Tensors, options: tuple[Any, ...]) -> None:
    """Store ``y``, and ``h`` unless it is None.

    tensors: x, residual, weight, bias, y, h; rows are (n_rows, n_cols), parameters (n_cols,), absent ones None.
    options: the fields of a Program.
    """
    addresses = [None if t is None else t.data_ptr() for t in tensors]
    key = (
        options,
        *[
            None if t is None else tensor_key(t, address)  # type: ignore[arg-type]
            for t, address in zip(tensors, addresses, strict=True)
        ],
    )
    run = _prepared.get(key)
    if run is None:
        if len(_prepared) >= MAX_PREPARED:
            _prepared.clear()
        run = _prepared[key] = _prepare(tensors, Program(*options))
    run(tensors, addresses)


def _prepare(tensors: Tensors, program: Program) -> Run:
    x, residual, weight, bias, y, h = tensors
    assert x is not None
    assert y is not None
    if x.is_cpu and not INTERPRETING:
        return lambda tensors, _: _in_pytorch(tensors, program)
    inputs = Inputs(x, residual, None, weight, bias)
    are_stored_to = all(t is None or t.is_contiguous() for t in (y, h))
    if unreadable(inputs, program) or not are_stored_to:
        return lambda tensors, _: _with_copies(tensors, program)
    with torch.cuda.device_of(x):
        return _bound(inputs, {"y": y, "h": h}, program)


def _bound(inputs: Inputs, outputs: dict[str, Tensor | None], program: Program) -> Run:
    """Plan and compile for tensors like these."""
    x = inputs.x
    problem = forward_problem(inputs, program)
    kernels, tensors, allocated, _ = steps(problem, plan(problem), inputs, program, False)
    roles = {role: tensors[role] for role in ("x", "residual", "weight", "bias")} | outputs
    allocators = {
        role: allocator(*one, x.device) for role, one in allocated.items() if role not in roles
    }
    index = x.get_device()
    run = bind_all(kernels, roles, allocators, ("y", "h"), index)
    if index < 0 or torch.cuda.device_count() == 1:
        return run

    def on_device(tensors: Tensors, addresses: list[int | None]) -> None:
        with torch.cuda.device(index):
            run(tensors, addresses)

    return on_device


def _with_copies(tensors: Tensors, program: Program) -> None:
    """For layouts that the kernels cannot read or store: contiguous copies."""
    x, residual, weight, bias, *outputs = tensors
    assert x is not None
    inputs = readable(Inputs(x, residual, None, weight, bias), program)
    stored = [None if t is None else torch.empty_like(t).contiguous() for t in outputs]
    rows = (inputs.x, inputs.residual, inputs.weight, inputs.bias)
    norm_into((*rows, *stored), tuple(program))
    for output, copy in zip(outputs, stored, strict=True):
        if output is not None and copy is not None:
            output.copy_(copy)


def _in_pytorch(tensors: Tensors, program: Program) -> None:
    """On a CPU without Triton's interpreter: the row program in PyTorch."""
    x, residual, weight, bias, y, h = tensors
    assert x is not None
    assert y is not None
    results = forward(*Inputs(x, residual, None, weight, bias), program)
    y.copy_(results.y)
    if h is not None and results.h is not None:
        h.copy_(results.h)
