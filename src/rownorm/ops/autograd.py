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
from ..reference import Given, Gradients, compute_dtype
from .execute import Statistics

Forward = Callable[..., Statistics]
Backward = Callable[..., Gradients]

_is_grad_enabled = torch.is_grad_enabled


class SingleLevelFunction(_SingleLevelFunction):
    """With the one thing more that compiled autograd asks a function for: what tells it from others."""

    @staticmethod
    def _compiled_autograd_key(ctx):  # type: ignore[no-untyped-def]
        return (ctx._autograd_function_id,)


class _Norm(SingleLevelFunction):
    @staticmethod
    def forward(ctx, run, run_backward, x, residual, pre_bias, weight, bias, program, statistics):  # type: ignore[no-untyped-def,override]
        y, h, mu, rstd = run(x, residual, pre_bias, weight, bias, program, True)
        ctx.save_for_backward(x if residual is None else h, pre_bias, weight, bias, mu, rstd)
        ctx.set_materialize_grads(False)
        ctx.how = (run_backward, program, x.dtype, None if residual is None else residual.dtype)
        if statistics:
            ctx.mark_non_differentiable(*(t for t in (mu, rstd) if t is not None))
            return y, h, mu, rstd
        return y if residual is None else (y, h)

    @staticmethod
    def backward(ctx, dy, dh=None, *_):  # type: ignore[no-untyped-def,override]
        needs = ctx.needs_input_grad[2:7]
        if dy is None:
            _, _, x_dtype, _ = ctx.how
            return None, None, *of_the_sum(dh, x_dtype, needs), None, None
        made = gradients(*ctx.how, needs, (dy, dh, *ctx.saved_tensors))  # type: ignore[call-arg]
        return None, None, *made, None, None


def gradients(
    run_backward: Backward,
    program: Program,
    x_dtype: torch.dtype,
    residual_dtype: torch.dtype | None,
    needs: tuple[bool, ...],
    given: tuple[Any, ...],
) -> Sequence[Tensor | None]:
    """Gradients of (x, residual, pre_bias, weight, bias), those that are needed.

    given: the fields of a ``Given``.
    """
    tensors = Given(*given)
    if residual_dtype != x_dtype:
        return run_backward(tensors, program, residual_dtype is not None, needs)
    return shared(run_backward(tensors, program, True, once(needs)), needs)


def of_the_sum(
    dh: Tensor | None, x_dtype: torch.dtype, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients where ``h`` alone was used, if that: the norm has no say, and its weight and bias have none.

    What was saved is not asked for: it may have been changed. Autograd rounds the sum to the dtype of pre_bias.
    """
    if dh is None:
        return (None,) * 5
    rows = dh.reshape(-1, dh.shape[-1]) if needs[2] else None
    dpre_bias = None if rows is None else rows.to(compute_dtype(dh)).sum(0)
    return dh.to(x_dtype) if needs[0] else None, dh if needs[1] else None, dpre_bias, None, None


# Where x and the residual have one dtype, one tensor is the gradient of both.


def once(needs: tuple[bool, ...]) -> tuple[bool, ...]:
    """The gradients to be made: that of x, if either is needed."""
    return (needs[0] or needs[1], False, *needs[2:])


def shared(made: Sequence[Tensor | None], needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """The gradients, each where it is needed."""
    dx = made[0]
    return dx if needs[0] else None, dx if needs[1] else None, *made[2:]


class _NormBackward(SingleLevelFunction):
    @staticmethod
    def forward(ctx, run, program, has_residual, wanted, *given):  # type: ignore[no-untyped-def,override]
        ctx.save_for_backward(*given[:-2])  # the statistics are found again, with their derivatives
        ctx.set_materialize_grads(False)
        ctx.options = (program, has_residual, wanted)
        return tuple(run(Given(*given), program, has_residual, wanted))

    @staticmethod
    def backward(ctx, *cotangents):  # type: ignore[no-untyped-def,override]
        given = ctx.saved_tensors
        present = [i for i, t in enumerate(given) if t is not None]
        made = [i for i, t in enumerate(cotangents) if t is not None]

        def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
            traced = [*given, None, None]
            for place, tensor in zip(present, tensors, strict=True):
                traced[place] = tensor
            every = plain_backward(Given(*traced), *ctx.options)
            return tuple(gradient for i in made if (gradient := every[i]) is not None)

        second: list[Tensor | None] = [None] * len(given)
        if made:
            _, pull_back = torch.func.vjp(gradients, *(given[i] for i in present))  # type: ignore[misc]
            pulled = pull_back(tuple(cotangents[i] for i in made))
            for place, gradient in zip(present, pulled, strict=True):
                second[place] = gradient
        return None, None, None, None, *second, None, None


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


def differentiable_backward(run: Backward, given: Given, *options: Any) -> Gradients:
    """``run(given, program, has_residual, wanted)``, with a gradient of its own."""
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            return Gradients(*_NormBackward.apply(run, *options, *given))  # type: ignore[attr-defined]
    return Gradients(*_NormBackward.apply(run, *options, *given))  # type: ignore[attr-defined]


def plain_backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """The gradients in plain PyTorch, all the way from h: their own derivatives go through the statistics."""
    pre_bias = None if has_residual else given.pre_bias
    h = given.h.to(compute_dtype(given.h, given.dy))
    mu, rstd = reference.moments(h, pre_bias, program)
    return reference.backward(given._replace(mu=mu, rstd=rstd), program, has_residual, wanted)


def needs_gradient(
    x: Tensor,
    second: Tensor | None = None,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
    fifth: Tensor | None = None,
    *more: Tensor | None,
) -> bool:
    """Whether autograd has to know of a call on these tensors. Every call asks: five of them cost no loop."""
    return _is_grad_enabled() and (
        x.requires_grad
        or (second is not None and second.requires_grad)
        or (third is not None and third.requires_grad)
        or (fourth is not None and fourth.requires_grad)
        or (fifth is not None and fifth.requires_grad)
        or (len(more) > 0 and any(t is not None and t.requires_grad for t in more))
    )
