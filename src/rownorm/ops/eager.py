"""Autograd where nothing listens: as little Python as can be between a caller and the kernels.

Backward runs in a thread of autograd's own, to which every Python object has to come from another core. So forward
leaves what it knows. The function that ran it stands for the options, and for all that a plan depends on in the
tensors; while autograd gives back those very tensors, only how the gradients lie that come in, and which are wanted,
makes a difference. Where kernels are started in C, the usual call is in C too (launch/native_eager.c), and comes back
here with anything else.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import forward_ad

from ..program import Program
from ..reference import Given
from . import execute, library
from .autograd import Backward, SingleLevelFunction, gradients, of_the_sum, once, shared
from .listeners import (
    QUESTIONS_OF_BACKWARD,
    nothing_listens,
    nothing_listens_to_backward,
    saved_tensors_hooks,
)


class _EagerNorm(SingleLevelFunction):
    @staticmethod
    def forward(ctx, x, residual, pre_bias, weight, bias, options):  # type: ignore[no-untyped-def,override]
        given = (x, residual, pre_bias, weight, bias)
        run, addresses = execute.find_forward(given, options, True)
        kept, place = x, addresses[0]
        y, h, *statistics = run(given, addresses)
        residual_dtype = None
        if residual is not None:
            kept, place, residual_dtype = h, h.data_ptr(), residual.dtype
        if saved_tensors_hooks(True):
            # They may give back other tensors, even at the same addresses.
            ctx.save_for_backward(kept, pre_bias, weight, bias, *statistics)
            places, statistics = None, ()
        else:
            # Nobody else has the statistics: they need no guard.
            ctx.save_for_backward(kept, pre_bias, weight, bias)
            places = [place, *addresses[2:5]]
        ctx.set_materialize_grads(False)
        ctx.known = (run, places, statistics, options, x.dtype, residual_dtype)
        return y if residual is None else (y, h)

    @staticmethod
    def backward(ctx, dy, dh=None):  # type: ignore[no-untyped-def,override]
        forward_run, places, statistics, _, x_dtype, _ = ctx.known
        if dy is None:
            return (*of_the_sum(dh, x_dtype, ctx.needs_input_grad[:5]), None)
        given = (dy, dh, *ctx.saved_tensors, *statistics)
        if not nothing_listens_to_backward(dy, dh):
            return _through(library.backward, ctx, given)
        try:
            addresses: list[Any] = [None if t is None else t.data_ptr() for t in given]
        except RuntimeError:
            # Gradients that autograd batches (is_grads_batched) have no storage; the dispatcher takes them apart.
            return _through(library.backward, ctx, given)
        if addresses[2:6] != places:
            plain = nothing_listens(*given[2:6])
            return _through(execute.backward if plain else library.backward, ctx, given)
        key = (
            forward_run,
            ctx.needs_input_grad,
            # What autograd does not see to: how dy and dh lie in memory.
            dy.is_contiguous() or dy.stride(),
            addresses[0] & 15,
            dh is not None and (dh.is_contiguous() or dh.stride(), addresses[1] & 15),
        )
        run = execute._backward_runs.get(key)
        if run is None:
            run = execute._remember(execute._backward_runs, key, _find(ctx, given))
        return (*run(given, addresses), None)


# The engine calls ``apply`` of a node, which would only look for ``backward``.
_EagerNorm._backward_cls.apply = _EagerNorm.backward  # type: ignore[attr-defined]

eager_norm = _EagerNorm.apply  # type: ignore[attr-defined]
# In Python, whatever takes their place.
_forward, _backward = _EagerNorm.forward, _EagerNorm.backward


def _through(run_backward: Backward, ctx: Any, given: tuple[Any, ...]) -> Any:
    """The gradients by the long way."""
    *_, options, x_dtype, residual_dtype = ctx.known
    needs = ctx.needs_input_grad[:5]
    program = Program(*options)
    return (*gradients(run_backward, program, x_dtype, residual_dtype, needs, given), None)


def _find(ctx: Any, given: tuple[Any, ...]) -> execute.Run:
    """What is left to do for tensors like these."""
    run, is_shared = _find_backward(ctx, given)
    needs = ctx.needs_input_grad[:5]
    return (lambda given, addresses: shared(run(given, addresses), needs)) if is_shared else run


def _find_backward(ctx: Any, given: tuple[Any, ...]) -> tuple[execute.Run, bool]:
    """The kernels of backward, and whether the gradient they give x is the residual's too."""
    *_, options, x_dtype, residual_dtype = ctx.known
    tensors, program, needs = Given(*given), Program(*options), ctx.needs_input_grad[:5]
    if residual_dtype != x_dtype:
        return execute.find_backward(tensors, program, residual_dtype is not None, needs), False
    return execute.find_backward(tensors, program, True, once(needs)), True


def _in_c(launch: Any) -> None:
    """Where launches are in C, so is the usual call here: the same questions, with fewer objects."""
    native, module = launch.native, launch.native.load()
    # Past save_for_backward and set_materialize_grads, to what they set.
    if module is None or not {"to_save", "materialize_grads"} <= set(dir(_EagerNorm)):
        return

    def find_backward(ctx: Any, dy: Tensor, dh: Tensor | None) -> Any:
        """A run that returns what ``backward`` does; None where it is not one of the extension."""
        _, _, statistics, *_ = ctx.known
        run, is_shared = _find_backward(ctx, (dy, dh, *ctx.saved_tensors, *statistics))
        if not native.is_run(run):
            return None
        needs = ctx.needs_input_grad
        x_and_residual = (0 if needs[0] else -1, 0 if needs[1] else -1) if is_shared else (0, 1)
        return native.returning(run, (*x_and_residual, 2, 3, 4, -1))

    module.use(
        forward_runs=execute._forward_runs,
        forward_in_python=_forward,
        backward_in_python=_backward,
        find_backward=find_backward,
        questions=QUESTIONS_OF_BACKWARD,
        forward_ad=forward_ad,
        saved_tensors_hooks=saved_tensors_hooks,
    )
    _EagerNorm.forward = module.forward  # type: ignore[method-assign]
    _EagerNorm._backward_cls.apply = module.apply  # type: ignore[attr-defined]


execute.when_launching(_in_c)
