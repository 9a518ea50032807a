"""The public functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..program import Program
from . import execute, library
from .autograd import needs_gradient
from .checks import check
from .eager import eager_norm
from .listeners import nothing_listens


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    pre_bias: Tensor | None = None,
    weight_shift: float = 0.0,
    activation: str | None = None,
    rounding: str = "once",
) -> Tensor:
    """Normalize each row to mean 0 and variance 1: ``y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias``.

    x: (..., n_cols); weight, bias, pre_bias: (n_cols,) or None. ``h`` is ``x + pre_bias``. The scale is ``weight +
    weight_shift``. ``activation`` is applied last: "relu", "silu", "gelu" or "gelu_tanh". Statistics in fp32 (fp64 for
    fp64), one rounding, to ``x.dtype``; with ``rounding="llama"`` the normalized row is rounded before the weight too.
    """
    options = (True, eps, weight_shift, activation, rounding)
    return _norm(x, None, pre_bias, weight, bias, options)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-6,
    pre_bias: Tensor | None = None,
    weight_shift: float = 0.0,
    activation: str | None = None,
    rounding: str = "once",
) -> Tensor:
    """Divide each row by its root mean square: ``y = h / sqrt(mean(h^2) + eps) * weight + bias``.

    Arguments as for ``layer_norm``. Models that store ``weight - 1`` pass ``weight_shift=1.0``; for the numbers of the
    Llama models of transformers, ``rounding="llama"``.
    """
    options = (False, eps, weight_shift, activation, rounding)
    return _norm(x, None, pre_bias, weight, bias, options)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    pre_bias: Tensor | None = None,
    weight_shift: float = 0.0,
    activation: str | None = None,
    rounding: str = "once",
) -> tuple[Tensor, Tensor]:
    """``h = x + pre_bias + residual``, ``y = layer_norm(h)``, in one pass; returns ``(y, h)``.

    x, residual: (..., n_cols). ``y`` has the dtype of x; ``h``, the new residual stream, that of the residual. The norm
    sees ``h`` before it is rounded; the gradient is the one at the ``h`` that is returned. Other arguments as for
    ``layer_norm``.
    """
    options = (True, eps, weight_shift, activation, rounding)
    return _norm(x, _required(residual, "layer_norm"), pre_bias, weight, bias, options)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-6,
    pre_bias: Tensor | None = None,
    weight_shift: float = 0.0,
    activation: str | None = None,
    rounding: str = "once",
) -> tuple[Tensor, Tensor]:
    """``h = x + pre_bias + residual``, ``y = rms_norm(h)``, in one pass; returns ``(y, h)``.

    x, residual: (..., n_cols). ``y`` has the dtype of x; ``h``, the new residual stream, that of the residual. The norm
    sees ``h`` before it is rounded. Other arguments as for ``rms_norm``.
    """
    options = (False, eps, weight_shift, activation, rounding)
    return _norm(x, _required(residual, "rms_norm"), pre_bias, weight, bias, options)


def _norm(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    options: tuple[Any, ...],
) -> Any:
    """y, or (y, h) with a residual: straight to ``execute`` where nothing listens, else as an operator.

    options: the fields of a Program, which is made only where it is needed: the shortest way has no time for it.
    """
    if nothing_listens(x, residual, pre_bias, weight, bias):
        if needs_gradient(x, residual, pre_bias, weight, bias):
            return eager_norm(x, residual, pre_bias, weight, bias, options)
        given = (x, residual, pre_bias, weight, bias)
        run, addresses = execute.find_forward(given, options, False)
        y, h, _, _ = run(given, addresses)
        return y if residual is None else (y, h)
    program = Program(*options)
    if not torch.compiler.is_compiling():
        check(x, residual, pre_bias, weight, bias, program)
    keywords = program._asdict()
    del keywords["center"]
    if residual is None:
        operator = getattr(library.operators, program.name)
        return operator(x, weight, bias, pre_bias, **keywords)
    operator = getattr(library.operators, f"add_{program.name}")
    return operator(x, residual, weight, bias, pre_bias, **keywords)


def _required(residual: Tensor, norm: str) -> Tensor:
    if residual is None:
        raise TypeError(
            f"rownorm.add_{norm}: residual must be a torch.Tensor; got None. "
            f"Without a residual, call rownorm.{norm}."
        )
    return residual
