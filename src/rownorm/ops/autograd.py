"""Autograd of the row program, first and second order.

``differentiable_forward`` computes the norm and saves what backward needs: h (or x), the parameters, and mu and rstd of
every row. Second derivatives go through plain PyTorch (``reference``), which PyTorch can differentiate any number of
times.

These are single-level functions, which ``torch.func`` transforms treat as an operator's own derivative formula. They
need ``enable_single_level_autograd_function`` inside a transform. Unlike ``torch.autograd.Function`` they do not bind a
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
from ..program import COLUMNS, INPUTS, ROWS_OF_H, SAVED, Program
from ..reference import BackwardInputs, Gradients, compute_dtype
from .checks import check_gradients
from .execute import ForwardResult
from .fast_path import can_skip_dispatcher, has_dispatch_modes

# (inputs, program) -> (y, h, mu, rstd)
ForwardFunction = Callable[..., ForwardResult]
# (BackwardInputs, program, has_residual, wanted) -> Gradients
BackwardFunction = Callable[..., Gradients]

N_INPUTS = len(INPUTS)
TERMS_OF_H = tuple(name for name, one in INPUTS.items() if one.in_h)
_TERMS = tuple(i for i, one in enumerate(INPUTS.values()) if one.in_h)
# Of those, the indices of the parameters of which backward reads no value beside a residual.
_UNREAD_TERMS = tuple(i for i, name in enumerate(INPUTS) if INPUTS[name].in_h and name in COLUMNS)
_RESIDUAL_GATE = tuple(INPUTS).index("residual_gate")
_SAVED_RESIDUAL_GATE = SAVED.index("residual_gate")
_N_ROWS_OF_H = len(ROWS_OF_H)
_is_grad_enabled = torch.is_grad_enabled
_is_inference_mode_enabled = torch.is_inference_mode_enabled


class SingleLevelFunction(_SingleLevelFunction):
    """Adds the key by which compiled autograd tells functions apart."""

    @staticmethod
    def _compiled_autograd_key(ctx):  # type: ignore[no-untyped-def]
        return (ctx._autograd_function_id,)


class _Norm(SingleLevelFunction):
    @staticmethod
    def forward(ctx, forward, backward, *arguments):  # type: ignore[no-untyped-def,override]
        inputs, (program, return_statistics) = arguments[:N_INPUTS], arguments[N_INPUTS:]
        x, residual = inputs[:2]
        outputs = y, h, mu, rstd = forward(inputs, program)
        ctx.set_materialize_grads(False)
        residual_dtype = None
        no_gradient = [t for t in (mu, rstd) if t is not None] if return_statistics else []
        if residual is not None:
            residual_dtype = residual.dtype
            if not h_needs_gradient(inputs):
                no_gradient.append(h)
        ctx.save_for_backward(*to_save(inputs, outputs))
        ctx.mark_non_differentiable(*no_gradient)
        ctx.settings = (backward, program, x.dtype, residual_dtype)
        ctx.has_residual_gate = inputs[_RESIDUAL_GATE] is not None
        if return_statistics:
            return y, h, mu, rstd
        return y if residual is None else (y, h)

    @staticmethod
    def backward(ctx, dy, dh=None, *_):  # type: ignore[no-untyped-def,override]
        needs = ctx.needs_input_grad[2 : 2 + N_INPUTS]
        if dy is None:
            _, _, x_dtype, _ = ctx.settings
            return None, None, *gradients_without_dy(ctx, dh, x_dtype, needs), None, None
        inputs = (dy, dh, *saved_tensors(ctx))
        _, program, x_dtype, _ = ctx.settings
        if not has_dispatch_modes():
            check_gradients(dy, dh, like=inputs[2], y_dtype=program.result_dtype(x_dtype))
        return None, None, *gradients(*ctx.settings, needs, inputs), None, None  # type: ignore[call-arg]


def to_save(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors that backward needs, in the order of ``SAVED``."""
    _, h, mu, rstd = outputs
    if inputs[1] is None:  # no residual: h is x
        return inputs[0], *inputs[_N_ROWS_OF_H:], None, mu, rstd
    if inputs[_RESIDUAL_GATE] is not None:
        return h, *inputs[_N_ROWS_OF_H:], inputs[0], mu, rstd
    others = list(inputs)
    for i in _UNREAD_TERMS:
        others[i] = _unguarded(others[i])
    return h, *others[_N_ROWS_OF_H:], None, mu, rstd


def _unguarded(term: Tensor | None) -> Tensor | None:
    """What to save of a pre_bias beside a residual: backward needs only its dtype and shape, so it may be modified."""
    if term is None or not can_skip_dispatcher(term):
        return term
    return term.data  # it has a version counter of its own


def saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """``ctx.saved_tensors``. After an error in a hook that unpacks them, the graph is released.

    A hook may have kept h, a result of this node, which keeps the node: nothing else would ever free them.
    """
    try:
        return ctx.saved_tensors
    except Exception:
        ctx.maybe_clear_saved_tensors()
        raise


def gradients(
    backward: BackwardFunction,
    program: Program,
    x_dtype: torch.dtype,
    residual_dtype: torch.dtype | None,
    needs: tuple[bool, ...],
    inputs: tuple[Any, ...],
) -> Sequence[Tensor | None]:
    """Gradients of the inputs, those that are needed.

    program: of the forward pass. inputs: the fields of a ``BackwardInputs``.
    """
    tensors, program = BackwardInputs(*inputs), program.for_backward(x_dtype)
    if not is_shared(x_dtype, residual_dtype, inputs[2:]):
        return backward(tensors, program, residual_dtype is not None, needs)
    return expand_shared(backward(tensors, program, True, shared_needs(needs)), needs)


def gradients_without_dy(
    ctx: Any, dh: Tensor | None, x_dtype: torch.dtype, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients where y was not used: those of ``h = residual_gate * (x + pre_bias) + residual`` alone, or none.

    The saved tensors are read only for a residual_gate, because they may have been modified in place. Autograd rounds a
    sum to the dtype of its parameter.
    """
    if dh is None:
        return (None,) * N_INPUTS
    if ctx.has_residual_gate:
        return _gradients_of_gated_sum(BackwardInputs(dh, dh, *saved_tensors(ctx)), x_dtype, needs)
    computed: dict[str, Tensor] = {}
    for (name, described), is_needed in zip(INPUTS.items(), needs, strict=True):
        if not (described.in_h and is_needed):
            continue
        if name in COLUMNS:
            computed[name] = _sum_of_rows(dh.to(compute_dtype(dh)))
        elif name in ROWS_OF_H:
            computed[name] = dh.to(x_dtype) if name == "x" else dh
    return tuple(computed.get(name) for name in INPUTS)


def _sum_of_rows(rows: Tensor) -> Tensor:
    """Over several dimensions: a DTensor that is sharded in one of them cannot always be flattened."""
    return rows.unsqueeze(0).sum(tuple(range(rows.dim())))


def _gradients_of_gated_sum(
    inputs: BackwardInputs, x_dtype: torch.dtype, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of ``residual_gate * (x + pre_bias) + residual``, those that are needed."""
    dh, x, gate = inputs.dh, inputs.x, inputs.residual_gate
    assert dh is not None
    assert x is not None
    assert gate is not None
    wide = dh.to(compute_dtype(x, dh))
    dx = wide * gate.to(wide.dtype)
    term = reference.prologue(x, None, inputs.pre_bias).to(wide.dtype)
    computed = {
        "x": dx.to(x_dtype),
        "residual": dh,
        "pre_bias": None if inputs.pre_bias is None else _sum_of_rows(dx),
        "residual_gate": (wide * term).sum_to_size(gate.shape).to(gate.dtype),
    }
    return tuple(
        computed.get(name) if need else None for name, need in zip(INPUTS, needs, strict=True)
    )


# Where x and the residual have the same dtype and there is no residual_gate, one tensor is the gradient of both.


def is_shared(
    x_dtype: torch.dtype, residual_dtype: torch.dtype | None, saved: Sequence[Any]
) -> bool:
    """Whether one tensor is the gradient of x and of the residual. saved: in the order of ``SAVED``."""
    return residual_dtype == x_dtype and saved[_SAVED_RESIDUAL_GATE] is None


def shared_needs(needs: tuple[bool, ...]) -> tuple[bool, ...]:
    """The gradients to compute: that of x where either of the two is needed."""
    return (needs[0] or needs[1], False, *needs[2:])


def expand_shared(
    computed: Sequence[Tensor | None], needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of all inputs, given those of ``shared_needs``."""
    dx = computed[0]
    return dx if needs[0] else None, dx if needs[1] else None, *computed[2:]


class _NormBackward(SingleLevelFunction):
    @staticmethod
    def forward(ctx, backward, program, has_residual, wanted, *inputs):  # type: ignore[no-untyped-def,override]
        ctx.save_for_backward(*inputs[:-2])  # mu and rstd are computed again, differentiably
        ctx.set_materialize_grads(False)
        ctx.options = (program, has_residual, wanted)
        return tuple(backward(BackwardInputs(*inputs), program, has_residual, wanted))

    @staticmethod
    def backward(ctx, *cotangents):  # type: ignore[no-untyped-def,override]
        saved = ctx.saved_tensors
        program, has_residual, _ = ctx.options
        used = [i for i, t in enumerate(cotangents) if t is not None]
        # The gradients do not depend on these, so they get no gradient, rather than zeros.
        tensors = BackwardInputs._make((*saved, None, None))
        gates_result = tensors.gate is not None and not program.gate_first
        is_linear = program.activation is None and not gates_result
        of_parameters = all(Gradients._fields[i] in ("weight", "bias") for i in used)
        unused = {
            *(TERMS_OF_H if has_residual and tensors.residual_gate is None else ()),
            "weight" if is_linear and tensors.scale is None and of_parameters else "",
            "bias" if is_linear and tensors.scale is None else "",
            "shift" if is_linear else "",
        }
        names = zip(BackwardInputs._fields, saved, strict=False)
        present = [i for i, (name, t) in enumerate(names) if t is not None and name not in unused]

        def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
            inputs = [*saved, None, None]
            for i, tensor in zip(present, tensors, strict=True):
                inputs[i] = tensor
            computed = plain_backward(BackwardInputs(*inputs), *ctx.options)
            return tuple(gradient for i in used if (gradient := computed[i]) is not None)

        second: list[Tensor | None] = [None] * len(saved)
        if used:
            _, pull_back = torch.func.vjp(gradients, *(saved[i] for i in present))  # type: ignore[misc]
            pulled = pull_back(tuple(cotangents[i] for i in used))
            for i, gradient in zip(present, pulled, strict=True):
                second[i] = gradient
        return None, None, None, None, *second, None, None


def differentiable_forward(
    forward: ForwardFunction,
    backward: BackwardFunction,
    *arguments: Any,
    return_statistics: bool = False,
) -> Any:
    """``forward`` with a gradient.

    arguments: the inputs, program. Returns y, or (y, h) with a residual, as the public
    functions do; with ``return_statistics``, (y, h, mu, rstd).
    """
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            return _Norm.apply(forward, backward, *arguments, return_statistics)  # type: ignore[attr-defined]
    return _Norm.apply(forward, backward, *arguments, return_statistics)  # type: ignore[attr-defined]


def differentiable_backward(
    backward: BackwardFunction, inputs: BackwardInputs, *options: Any
) -> Gradients:
    """``backward`` with a gradient of its own. options: program, has_residual, wanted."""
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            return Gradients(*_NormBackward.apply(backward, *options, *inputs))  # type: ignore[attr-defined]
    return Gradients(*_NormBackward.apply(backward, *options, *inputs))  # type: ignore[attr-defined]


def plain_backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """The gradients in plain PyTorch, with the statistics recomputed from h so that they can be differentiated."""
    pre_bias = None if has_residual else inputs.pre_bias  # h already contains it
    h = inputs.h.to(reference.backward_dtype(inputs.h, inputs.dy, program))
    x_dtype = program.result_dtype(inputs.dy.dtype)
    mu, rstd = reference.moments(h, pre_bias, inputs.gate, program, x_dtype)
    return reference.backward(inputs._replace(mu=mu, rstd=rstd), program, has_residual, wanted)


def needs_gradient(
    x: Tensor,
    second: Tensor | None = None,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
    fifth: Tensor | None = None,
    sixth: Tensor | None = None,
    seventh: Tensor | None = None,
    eighth: Tensor | None = None,
    ninth: Tensor | None = None,
    *more: Tensor | None,
) -> bool:
    """Whether autograd has to record a call on these tensors. Without a loop for the first nine: every call pays."""
    return (
        _is_grad_enabled()
        and (
            x.requires_grad
            or (second is not None and second.requires_grad)
            or (third is not None and third.requires_grad)
            or (fourth is not None and fourth.requires_grad)
            or (fifth is not None and fifth.requires_grad)
            or (sixth is not None and sixth.requires_grad)
            or (seventh is not None and seventh.requires_grad)
            or (eighth is not None and eighth.requires_grad)
            or (ninth is not None and ninth.requires_grad)
            or (len(more) > 0 and any(t is not None and t.requires_grad for t in more))
        )
        # Gradients can be enabled inside inference mode, which never records.
        and not _is_inference_mode_enabled()
    )


def h_needs_gradient(inputs: Sequence[Any]) -> bool:
    """Whether ``h = residual_gate * (x + pre_bias) + residual`` depends on something that requires a gradient."""
    for i in _TERMS:
        t = inputs[i]
        if t is not None and t.requires_grad:
            return True
    return False
