"""Sharding rules of the operators for DTensor. ``library`` loads this file when a program uses DTensor.

Rows are independent of each other. So an operator runs on the shards of any dimension but the last, without
communication:

    x, residual, gate, y, h, mu, rstd,
    their gradients                                 rows: all of them have the same placement
    weight, bias, pre_bias                          replicated
    dweight, dbias, dpre_bias                       sums over rows: ``Partial`` where rows are sharded
    scale, shift, residual_gate                     sharded where rows are in one of their dimensions, else replicated
    their gradients                                 sharded in the same way; ``Partial`` where the others are replicated

DTensor redistributes arguments that have other placements, as it does for torch's norms. Rows keep a sharding that one
of them has. ``Partial`` rows and rows that are sharded in the last dimension are replicated if none has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import Placement

from .._ops import ops as operators
from ..program import COLUMN_SUMS, SAMPLE_SUMS, SAMPLES
from .vmap import WITH_ROWS, represent_none

OPERATORS = (
    "layer_norm",
    "rms_norm",
    "add_layer_norm",
    "add_rms_norm",
    "norm_forward",
    "norm_backward",
)

# (placements of the outputs, placements of the tensors among the arguments), for one dimension of the mesh
Sharding = tuple[list[Placement], list[Placement]]


def _rule(operator: Any) -> Callable[..., Sequence[Sharding]]:
    """The shardings that an operator accepts, as a function of its arguments.

    A tensor among the arguments is represented by an object with ``placements`` and ``ndim``.
    """
    schema = operator._schema

    def rule(*args: Any, **options: Any) -> Sequence[Sharding]:
        values = {a.name: v for a, v in zip(schema.arguments, args, strict=False)} | options
        tensors = {name: v for name, v in values.items() if hasattr(v, "placements")}
        rows = [spec.placements for name, spec in tensors.items() if name in WITH_ROWS]
        n_dims_of_rows = args[0].ndim - 1  # x or dy
        shards = [p for p in itertools.chain(*rows) if _shards_rows(p, n_dims_of_rows)]
        are_none = represent_none(values, len(schema.returns))

        def sharding(placement: Placement) -> Sharding:
            of_samples = {
                name: _sample_placement(tensors[name], placement, n_dims_of_rows + 1)
                for name in SAMPLES
                if name in tensors
            }
            outputs = [
                _output_placement(r.name, is_none, placement, of_samples)
                for r, is_none in zip(schema.returns, are_none, strict=True)
            ]
            inputs = [
                placement if name in WITH_ROWS else of_samples.get(name, Replicate())
                for name in tensors
            ]
            return outputs, inputs

        # Without duplicates, and in an order that is the same on every rank.
        return [sharding(placement) for placement in dict.fromkeys((Replicate(), *shards))]

    return rule


def _shards_rows(placement: Any, n_dims_of_rows: int) -> bool:
    """Whether this placement splits a dimension before the last. There are more classes of shards than ``Shard``."""
    is_shard = not (placement.is_replicate() or placement.is_partial())
    return is_shard and placement.dim < n_dims_of_rows


def _sample_placement(sample: Any, rows: Placement, n_dims: int) -> Placement:
    """The placement of a tensor that is broadcast to rows of ``n_dims`` dimensions with this placement."""
    if rows.is_replicate():
        return Replicate()
    dim = rows.dim - (n_dims - sample.ndim)  # type: ignore[attr-defined]
    if dim < 0 or sample.shape[dim] == 1:
        return Replicate()
    strided = {"split_factor": rows.split_factor} if hasattr(rows, "split_factor") else {}
    return type(rows)(dim, **strided)  # type: ignore[call-arg]


def _output_placement(
    name: str, is_none: bool, rows: Placement, of_samples: dict[str, Placement]
) -> Placement:
    """The placement of an output. An empty tensor that represents None is the same on every rank."""
    if is_none or rows.is_replicate():
        return Replicate()
    if name in SAMPLE_SUMS:
        placement = of_samples[name.removeprefix("d")]
        return Partial() if placement.is_replicate() else placement
    return Partial() if name in COLUMN_SUMS else rows


def _unsupported(*_: Any, **__: Any) -> Sequence[Sharding]:
    raise NotImplementedError(
        f"rownorm has no sharding rules for torch {torch.__version__}. Call it on local tensors, with "
        "torch.distributed.tensor.experimental.local_map, or use torch.nn.functional's norms for DTensors."
    )


def _cache_by_every_argument(operator: Any) -> None:
    """Let every option count in DTensor's cache of placements, because it stores the outputs' shapes and dtypes, too.

    ``register_sharding`` counts arguments from the first integer on, here ``out_dtype``. ``center`` comes before it and
    would not count: after an RMSNorm, a LayerNorm would get an empty mean. Without an integer, ``wanted`` would not
    count either: after a frozen weight, a trained one would get an empty gradient.
    """
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    options = [a.name for a in operator._schema.arguments if a.kwarg_only]
    propagator = DTensor._op_dispatcher.sharding_propagator  # type: ignore[attr-defined]
    if operator not in propagator.op_to_schema_info:
        raise AttributeError("the table of cache keys has moved")
    propagator.op_to_schema_info[operator] = RuntimeSchemaInfo(1, options or None)


def _register(operator: Any) -> None:
    """Register the rule of an operator, or one that raises where DTensor's cache cannot be told about its options."""
    register_sharding(operator)(_rule(operator))
    try:
        _cache_by_every_argument(operator)
    except (ImportError, AttributeError, TypeError):
        register_sharding(operator)(_unsupported)


for _name in OPERATORS:
    _register(getattr(operators, _name).default)
