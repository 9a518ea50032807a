"""Autograd of the row program, first and second order.

``differentiable_forward`` runs the norm and remembers what backward needs: h (or x), the parameters and two numbers a
row. The gradient of the gradient goes through plain PyTorch (``reference``), from which PyTorch differentiates on.

These are single-level functions: to a ``torch.func`` transform they look like an operator's own derivative formula,
which it lets run only where it is told that this is meant; and unlike ``torch.autograd.Function`` they bind no
signature at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from .. import reference
from ..program import Program
from ..reference import Gradients
from .execute import Statistics

Forward = Callable[..., Statistics]
Backward = Callable[..., Gradients]


class _Norm(_SingleLevelFunction):
    @staticmethod
    def forward(ctx, run, run_backward, x, residual, pre_bias, weight, bias, program, statistics):  # type: ignore[no-untyped-def,override]
        y, h, mu, rstd = run(x, residual, pre_bias, weight, bias, program, True)
        ctx.save_for_backward(x if residual is None else h, pre_bias, weight, bias, mu, rstd)
        ctx.set_materialize_grads(False)
        ctx.run_backward = run_backward
        ctx.program = program
        ctx.x_dtype = x.dtype
        ctx.residual_dtype = None if residual is None else residual.dtype
        if statistics:
            ctx.mark_non_differentiable(*(t for t in (mu, rstd) if t is not None))
            return y, h, mu, rstd
        return y if residual is None else (y, h)

    @staticmethod
    def backward(ctx, dy, dh=None, *_):  # type: ignore[no-untyped-def,override]
        h, pre_bias, weight, bias, mu, rstd = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:7]
        if dy is None and dh is None:
            return (None,) * 9
        if dy is None:
            dy = torch.zeros(h.shape, dtype=ctx.x_dtype, device=h.device)
        has_residual = ctx.residual_dtype is not None
        # Where x and the residual have one dtype, one tensor is the gradient of both.
        shared = ctx.residual_dtype == ctx.x_dtype
        wanted = (
            needs[0] or (shared and needs[1]),
            needs[1] and not shared,
            *needs[2:],
        )
        dx, dresidual, *parameters = ctx.run_backward(
            dy, dh, h, pre_bias, weight, bias, mu, rstd, ctx.program, has_residual, wanted
        )
        if shared and needs[1]:
            dresidual = dx
        return None, None, dx if needs[0] else None, dresidual, *parameters, None, None


class _NormBackward(_SingleLevelFunction):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def,override]
        ctx, run, dy, dh, h, pre_bias, weight, bias, mu, rstd, program, has_residual, wanted
    ):
        gradients = run(dy, dh, h, pre_bias, weight, bias, mu, rstd, program, has_residual, wanted)
        ctx.save_for_backward(dy, dh, h, pre_bias, weight, bias)
        ctx.set_materialize_grads(False)
        ctx.options = (program, has_residual, wanted)
        return tuple(gradients)

    @staticmethod
    def backward(ctx, *cotangents):  # type: ignore[no-untyped-def,override]
        program, has_residual, wanted = ctx.options
        present = [i for i, t in enumerate(ctx.saved_tensors) if t is not None]
        made = [i for i, t in enumerate(cotangents) if t is not None]

        def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
            given: list[Any] = [None] * 6
            for place, tensor in zip(present, tensors, strict=True):
                given[place] = tensor
            every = plain_backward(given, program, has_residual, wanted)
            return tuple(gradient for i in made if (gradient := every[i]) is not None)

        second: list[Tensor | None] = [None] * 6
        if made:
            _, pull_back = torch.func.vjp(gradients, *(ctx.saved_tensors[i] for i in present))  # type: ignore[misc]
            pulled = pull_back(tuple(cotangents[i] for i in made))
            for place, gradient in zip(present, pulled, strict=True):
                second[place] = gradient
        return None, *second, None, None, None, None, None


def differentiable_forward(
    run: Forward, run_backward: Backward, *arguments: Any, statistics: bool = False
) -> Any:
    """``run(x, residual, pre_bias, weight, bias, program)`` with a gradient.

    Returns what the public functions do: y, or (y, h); with ``statistics``, (y, h, mu, rstd).
    """
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            return _Norm.apply(run, run_backward, *arguments, statistics)  # type: ignore[attr-defined]
    return _Norm.apply(run, run_backward, *arguments, statistics)  # type: ignore[attr-defined]


def differentiable_backward(run: Backward, *arguments: Any) -> Gradients:
    """``run(dy, dh, h, ...)``, with a gradient of its own."""
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            return Gradients(*_NormBackward.apply(run, *arguments))  # type: ignore[attr-defined]
    return Gradients(*_NormBackward.apply(run, *arguments))  # type: ignore[attr-defined]


def plain_backward(
    given: Sequence[Any], program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """The gradients in plain PyTorch, all the way from h: their own derivatives go through the statistics.

    given: dy, dh, h, pre_bias, weight, bias.
    """
    dy, dh, h, pre_bias, weight, bias = given
    mu, rstd = reference.moments(h, None if has_residual else pre_bias, program)
    return reference.backward(
        dy, dh, h, pre_bias, weight, bias, mu, rstd, program, has_residual, wanted
    )


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd has to know of a call on these tensors."""
    return torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)
