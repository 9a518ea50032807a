"""Batching rules for ``torch.vmap``: batched rows are more rows; for anything else the operator is called in a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..program import (
    BACKWARD_ROWS,
    COLUMNS,
    INPUTS,
    ROWS,
    SAMPLE_SUMS,
    SAMPLES,
)

# Arguments that have rows.
WITH_ROWS = (*ROWS, *BACKWARD_ROWS, "mu", "rstd")


def batched(operator: Any) -> Callable[..., Any]:
    """The batching rule of an operator of this library."""
    arguments = operator._schema.arguments
    n_outputs = len(operator._schema.returns)

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        values = {a.name: v for a, v in zip(arguments, args, strict=False)} | kwargs
        dims = {a.name: d for a, d in zip(arguments, in_dims, strict=False) if isinstance(d, int)}

        wanted = dict(zip(INPUTS, values.get("wanted", ()), strict=False))
        sums_columns = any(wanted.get(name, False) for name in COLUMNS)
        if all(name in WITH_ROWS or name in SAMPLES for name in dims) and not sums_columns:
            x = arguments[0].name  # or dy
            n_dims = values[x].dim() - (x in dims)

            def folded(name: str, v: Any) -> Any:
                if not isinstance(v, Tensor):
                    return v
                if name in WITH_ROWS:
                    return _with_batch_first(v, dims.get(name), info.batch_size)
                if name in dims or wanted.get(name, False):  # each of the batch has its own samples
                    v = _with_batch_first(v, dims.get(name), info.batch_size)
                    missing = [1] * (n_dims + 1 - v.dim())
                    return v.reshape(v.shape[0], *missing, *v.shape[1:])
                return v

            outputs = operator(**{name: folded(name, v) for name, v in values.items()})
            if n_outputs > 1:
                names = [one.name for one in operator._schema.returns]
                are_none = represent_none(values, n_outputs)
                outputs = tuple(
                    t.expand(info.batch_size, 0)
                    if is_none
                    else t.reshape(info.batch_size, *_element_shape(values, dims, name))
                    if name in SAMPLE_SUMS
                    else t
                    for name, t, is_none in zip(names, outputs, are_none, strict=True)
                )
            return outputs, _dims(n_outputs)
        each = [
            operator(**{n: _element(v, dims[n], i) if n in dims else v for n, v in values.items()})
            for i in range(max(info.batch_size, 1))  # an empty batch: one call, for the shapes
        ]
        if n_outputs == 1:
            return torch.stack(each)[: info.batch_size], 0
        stacked = (torch.stack(outputs)[: info.batch_size] for outputs in zip(*each, strict=True))
        return tuple(stacked), _dims(n_outputs)

    return rule


def represent_none(values: dict[str, Any], n_outputs: int) -> list[bool]:
    """Which outputs are empty tensors that represent None: they have no dimension that could be the batch."""
    if "wanted" in values:  # norm_backward: the gradients
        return [not is_wanted for is_wanted in values["wanted"]]
    if "center" in values:  # norm_forward: y, h, mu, rstd
        return [False, values["residual"] is None, not values["center"], False]
    return [False] * n_outputs


def _with_batch_first(t: Tensor, dim: int | None, batch_size: int) -> Tensor:
    return t.expand(batch_size, *t.shape) if dim is None else t.movedim(dim, 0)


def _element(t: Tensor, dim: int, i: int) -> Tensor:
    """Slice ``i`` along ``dim``; zeros of its shape where the batch is empty."""
    return t.select(dim, i) if t.shape[dim] else t.new_zeros(t.movedim(dim, 0).shape[1:])


def _element_shape(values: dict[str, Any], dims: dict[str, int], sum_name: str) -> torch.Size:
    """The shape of a gradient ``d<name>`` for one of the batch."""
    name = sum_name.removeprefix("d")
    t = values[name]
    return t.movedim(dims[name], 0).shape[1:] if name in dims else t.shape


def _dims(n_outputs: int) -> Any:
    return 0 if n_outputs == 1 else (0,) * n_outputs
