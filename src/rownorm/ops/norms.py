"""The public functions.

Their signatures are written out, so that editors and type checkers see them. A test proves that they, the operators'
schemas and ``Program`` have the same options and defaults.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..program import Activation, GateActivation, Program, Rounding
from . import eager, execute, library
from .autocast import autocast_options
from .autograd import needs_gradient
from .batch_invariance import is_on, state
from .checks import check
from .fast_path import (
    can_skip_dispatcher,
    default_device_is_set,
    disable_function_modes,
    is_autocast_enabled,
    is_profiler_enabled,
    is_traced,
    profiled,
)
from .groups import in_groups, ungrouped

# The operators by ``center`` and whether there is a residual, as a profiler shows them.
_OPERATORS = {
    (True, False): "rownorm::layer_norm",
    (True, True): "rownorm::add_layer_norm",
    (False, False): "rownorm::rms_norm",
    (False, True): "rownorm::add_rms_norm",
}


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    pre_bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    gate: Tensor | None = None,
    weight_shift: float = 0.0,
    scale_shift: float = 0.0,
    activation: Activation | None = None,
    gate_activation: GateActivation | None = None,
    gate_first: bool = False,
    rounding: Rounding = "once",
    out_dtype: torch.dtype | None = None,
    group_cols: int | None = None,
) -> Tensor:
    """Normalize each row to mean 0 and variance 1: ``y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias``.

    x: (..., n_cols); weight, bias, pre_bias: (n_cols,) or None. ``h`` is ``x + pre_bias``. The factor is ``weight +
    weight_shift``. Then the row is modulated: ``y * (scale + scale_shift) + shift``, where scale and shift have shapes
    that broadcast to x, such as (batch, 1, n_cols). Then comes ``activation``: "relu", "silu", "gelu" or "gelu_tanh".
    ``gate``, of the shape of x, is a factor of the result, or with ``gate_first`` of h; ``gate_activation`` is applied
    to it: "silu" or "sigmoid". ``group_cols``: statistics are those of groups of so many columns, not of the row.

    Statistics in fp32 (fp64 for fp64), one rounding, to ``out_dtype``, which is ``x.dtype`` unless it is given; with
    ``rounding="llama"`` the normalized row is rounded to ``x.dtype`` before the weight is applied, too, with "each" the
    result of every step is. Every gradient has the dtype and shape of its tensor.
    """
    mode = state.is_active and is_on()
    options = (
        *(True, eps, weight_shift, scale_shift, activation, gate_activation, gate_first),
        *(rounding, out_dtype, mode),
    )
    if group_cols is not None:
        inputs = (x, None, pre_bias, weight, bias, scale, shift, None, gate)
        return _in_groups(inputs, options, group_cols)
    return _norm(x, None, pre_bias, weight, bias, scale, shift, None, gate, options)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-6,
    pre_bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    gate: Tensor | None = None,
    weight_shift: float = 0.0,
    scale_shift: float = 0.0,
    activation: Activation | None = None,
    gate_activation: GateActivation | None = None,
    gate_first: bool = False,
    rounding: Rounding = "once",
    out_dtype: torch.dtype | None = None,
    group_cols: int | None = None,
) -> Tensor:
    """Divide each row by its root mean square: ``y = h / sqrt(mean(h^2) + eps) * weight + bias``.

    Arguments as for ``layer_norm``. Models that store ``weight - 1`` pass ``weight_shift=1.0``. ``rounding="llama"``
    gives the same numbers as the Llama models of transformers.
    """
    mode = state.is_active and is_on()
    options = (
        *(False, eps, weight_shift, scale_shift, activation, gate_activation, gate_first),
        *(rounding, out_dtype, mode),
    )
    if group_cols is not None:
        inputs = (x, None, pre_bias, weight, bias, scale, shift, None, gate)
        return _in_groups(inputs, options, group_cols)
    return _norm(x, None, pre_bias, weight, bias, scale, shift, None, gate, options)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    pre_bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual_gate: Tensor | None = None,
    gate: Tensor | None = None,
    weight_shift: float = 0.0,
    scale_shift: float = 0.0,
    activation: Activation | None = None,
    gate_activation: GateActivation | None = None,
    gate_first: bool = False,
    rounding: Rounding = "once",
    out_dtype: torch.dtype | None = None,
    group_cols: int | None = None,
) -> tuple[Tensor, Tensor]:
    """``h = residual + residual_gate * (x + pre_bias)``, ``y = layer_norm(h)``, in one pass; returns ``(y, h)``.

    x, residual: (..., n_cols); residual_gate: a shape that broadcasts to x, or None for 1. ``y`` has the dtype of x, or
    ``out_dtype``; ``h``, the new residual stream, has the dtype of the residual. ``y`` is computed from ``h`` before it
    is rounded; the gradient is the one at the ``h`` that is returned. Other arguments as for ``layer_norm``.

    Both results belong to one node of autograd's graph. So ``h.retain_grad()`` and a hook on ``h`` see only the
    gradient that reaches ``h`` itself, not what comes through ``y``; ``torch.autograd.grad(y, h)`` raises; and a hook
    on a result that was not used gets None. To get the whole gradient at ``h``, write ``h = residual + x`` and
    ``layer_norm(h)``.
    """
    mode = state.is_active and is_on()
    options = (
        *(True, eps, weight_shift, scale_shift, activation, gate_activation, gate_first),
        *(rounding, out_dtype, mode),
    )
    residual = _required(residual, "layer_norm")
    if group_cols is not None:
        inputs = (x, residual, pre_bias, weight, bias, scale, shift, residual_gate, gate)
        return _in_groups(inputs, options, group_cols)
    return _norm(x, residual, pre_bias, weight, bias, scale, shift, residual_gate, gate, options)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-6,
    pre_bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual_gate: Tensor | None = None,
    gate: Tensor | None = None,
    weight_shift: float = 0.0,
    scale_shift: float = 0.0,
    activation: Activation | None = None,
    gate_activation: GateActivation | None = None,
    gate_first: bool = False,
    rounding: Rounding = "once",
    out_dtype: torch.dtype | None = None,
    group_cols: int | None = None,
) -> tuple[Tensor, Tensor]:
    """``h = residual + residual_gate * (x + pre_bias)``, ``y = rms_norm(h)``, in one pass; returns ``(y, h)``.

    x, residual: (..., n_cols); residual_gate: a shape that broadcasts to x, or None for 1. ``y`` has the dtype of x, or
    ``out_dtype``; ``h``, the new residual stream, has the dtype of the residual. ``y`` is computed from ``h`` before it
    is rounded. Other arguments as for ``rms_norm``. For gradients and hooks at ``h`` see ``add_layer_norm``.
    """
    mode = state.is_active and is_on()
    options = (
        *(False, eps, weight_shift, scale_shift, activation, gate_activation, gate_first),
        *(rounding, out_dtype, mode),
    )
    residual = _required(residual, "rms_norm")
    if group_cols is not None:
        inputs = (x, residual, pre_bias, weight, bias, scale, shift, residual_gate, gate)
        return _in_groups(inputs, options, group_cols)
    return _norm(x, residual, pre_bias, weight, bias, scale, shift, residual_gate, gate, options)


def _norm(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    residual_gate: Tensor | None,
    gate: Tensor | None,
    options: tuple[Any, ...],
) -> Any:
    """y, or (y, h) with a residual: through ``execute`` where the dispatcher can be skipped, else through an operator.

    options: the fields of a Program in a plain tuple. A Program costs more to build, so the fast path has none.
    """
    if not is_traced():
        result = eager.native.norm(
            x, residual, pre_bias, weight, bias, scale, shift, residual_gate, gate, options
        )
        if result is not NotImplemented:
            return result
    inputs = (x, residual, pre_bias, weight, bias, scale, shift, residual_gate, gate)
    if can_skip_dispatcher(*inputs):
        if is_autocast_enabled():
            options = autocast_options(x, options)
        if is_profiler_enabled():
            with profiled(_OPERATORS[options[0], residual is not None]):
                return _direct(inputs, options)
        return _direct(inputs, options)
    if default_device_is_set():
        with disable_function_modes():
            return _norm(*inputs, options)
    program = Program(*options)
    if not torch.compiler.is_compiling():
        check(inputs, program)
    return library.call_operator(inputs, program)


def _in_groups(inputs: tuple[Any, ...], options: tuple[Any, ...], group_cols: int) -> Any:
    """As ``_norm``, with statistics over groups of columns."""
    grouped, program = in_groups(inputs, options, group_cols)
    return ungrouped(_norm(*grouped, tuple(program)))


def _direct(inputs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """As ``_norm``, without the dispatcher."""
    if needs_gradient(*inputs):
        return eager.native.record(*inputs, options)
    outputs = execute.forward_in_c(inputs, options, False) if inputs[0].is_cpu else None
    if outputs is None:
        call, addresses = execute.find_forward(inputs, options, False)
        outputs = call(inputs, addresses)
    y, h, _, _ = outputs
    return y if h is None else (y, h)


def _required(residual: Tensor, norm: str) -> Tensor:
    if residual is None:
        raise TypeError(
            f"rownorm.add_{norm}: residual must be a torch.Tensor; got None. "
            f"Without a residual, call rownorm.{norm}."
        )
    return residual
