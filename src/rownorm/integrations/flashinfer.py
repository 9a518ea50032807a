"""FlashInfer's norms, stored to the tensors that its Trace Apply passes: ``rownorm fib export --for-flashinfer``.

Names and order of the arguments are those of FlashInfer's trace templates. ``output`` is written; functions that add
write y over ``hidden_states`` and the sum over ``residual``, as FlashInfer's own do, and return both.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..ops import norms
from ..ops.into import norm_into
from ..program import Activation, Program


def rmsnorm(hidden_states: Tensor, weight: Tensor, output: Tensor, *, eps: float) -> None:
    """``output = RMSNorm(hidden_states) * weight``."""
    _store("rms_norm", hidden_states, weight, y=output, eps=eps)


def gemma_rmsnorm(hidden_states: Tensor, weight: Tensor, output: Tensor, *, eps: float) -> None:
    """``output = RMSNorm(hidden_states) * (1 + weight)``."""
    _store("rms_norm", hidden_states, weight, y=output, eps=eps, weight_shift=1.0)


def fused_rmsnorm_silu(input: Tensor, weight: Tensor, output: Tensor, *, eps: float) -> None:
    """``output = silu(RMSNorm(input) * weight)``; no fp8 or fp4 results."""
    _store("rms_norm", input, weight, y=output, eps=eps, activation="silu")


def layernorm(
    hidden_states: Tensor, weight: Tensor, bias: Tensor, output: Tensor, *, eps: float
) -> None:
    """``output = LayerNorm(hidden_states) * weight + bias``."""
    _store("layer_norm", hidden_states, weight, bias, y=output, eps=eps)


def fused_add_rmsnorm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """``residual += hidden_states; hidden_states = RMSNorm(residual) * weight``."""
    _store("rms_norm", hidden_states, weight, residual=residual, y=hidden_states, eps=eps)
    return hidden_states, residual


def gemma_fused_add_rmsnorm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """``residual += hidden_states; hidden_states = RMSNorm(residual) * (1 + weight)``."""
    _store(
        "rms_norm",
        hidden_states,
        weight,
        residual=residual,
        y=hidden_states,
        eps=eps,
        weight_shift=1.0,
    )
    return hidden_states, residual


@torch.no_grad()
def _store(
    operation: Literal["rms_norm", "layer_norm"],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    y: Tensor,
    eps: float,
    weight_shift: float = 0.0,
    activation: Activation | None = None,
) -> None:
    """Store the norm in ``y`` and, with a residual, the sum in ``residual``."""
    program = Program(
        operation == "layer_norm", eps, weight_shift=weight_shift, activation=activation
    )
    rows = [t for t in (residual, y) if t is not None]
    columns = [t for t in (weight, bias) if t is not None]
    if (
        x.dim() == 2
        and all(t.shape == x.shape and t.dtype == x.dtype for t in rows)
        and all(t.shape == x.shape[1:] for t in columns)
        and all(t.device == x.device for t in (*rows, *columns))
    ):
        norm_into((x, residual, weight, bias, y, residual), program)
        return
    # The public functions take other shapes and dtypes, and their checks name what they do not take.
    keywords = program.keywords() | {"out_dtype": None if y.dtype == x.dtype else y.dtype}
    if residual is not None:
        result, total = norms.add_rms_norm(x, residual, weight, **keywords)
        residual.copy_(total)
    elif operation == "layer_norm":
        result = norms.layer_norm(x, weight, bias, **keywords)
    else:
        result = norms.rms_norm(x, weight, **keywords)
    y.copy_(result)
