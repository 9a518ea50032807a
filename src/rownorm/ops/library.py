"""The operators: ``torch.ops.rownorm.*``, and what PyTorch asks of an operator.

    layer_norm, rms_norm                 the public functions, one output
    add_layer_norm, add_rms_norm         with a residual, two outputs
    norm_forward                         (y, h, mu, rstd): what autograd runs when a gradient will be wanted
    norm_backward                        its gradients

Every operator runs ``execute`` on real tensors; the registrations around it let it be traced, compiled, exported,
differentiated, vmapped and autocast. Forward-mode differentiation goes through plain PyTorch (``reference``). An
operator always returns tensors: where a call has none to return, ``norm_forward`` and ``norm_backward`` give an empty
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .. import reference
from ..program import Program
from ..reference import Given, Gradients, compute_dtype
from . import execute
from .autograd import (
    differentiable_backward,
    differentiable_forward,
    needs_gradient,
    plain_backward,
)
from .checks import check
from .listeners import forward_mode
from .vmap import batched

DEFAULT_EPS = {"layer_norm": 1e-5, "rms_norm": 1e-6}

_PARAMETERS = "Tensor? weight=None, Tensor? bias=None, Tensor? pre_bias=None"
_OPTIONS = 'float weight_shift=0., str? activation=None, str rounding="once"'
_PROGRAM = "bool center, float eps, float weight_shift, str? activation, str rounding"
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)

library = Library("rownorm", "DEF")
operators = torch.ops.rownorm

# (x, residual, pre_bias, weight, bias, program) -> y or (y, h)
Body = Callable[..., Any]


def _below_autograd(operator: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args, **kwargs)

    return call


def _for_autograd(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator as an autograd function runs it: with gradients, should a transform further out want them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
            return operator(*args, **kwargs)

    return call


def _none_as_empty(tensors: Sequence[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
    return tuple(like.new_empty(0) if t is None else t for t in tensors)


# norm_forward and norm_backward, as functions of a Program


def forward(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    program: Program,
    want_statistics: bool = True,
) -> execute.Statistics:
    """``torch.ops.rownorm.norm_forward``."""
    y, h, mu, rstd = operators.norm_forward(x, residual, pre_bias, weight, bias, *program)
    return y, (None if residual is None else h), (mu if program.center else None), rstd


def backward(
    given: Given, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """``torch.ops.rownorm.norm_backward``."""
    made = operators.norm_backward(*given, *program, has_residual, wanted)
    return Gradients(*(t if want else None for t, want in zip(made, wanted, strict=True)))


def _register_norm_forward() -> None:
    library.define(
        "norm_forward(Tensor x, Tensor? residual, Tensor? pre_bias, Tensor? weight, Tensor? bias, "
        f"{_PROGRAM}) -> (Tensor y, Tensor h, Tensor mu, Tensor rstd)",
        tags=_TAGS,
    )
    operator = operators.norm_forward.default

    def real(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
        return _none_as_empty(execute.forward(x, *args[:4], Program(*args[4:]), True), x)  # type: ignore[call-arg]

    def fake(x: Tensor, residual: Tensor | None, *args: Any) -> tuple[Tensor, ...]:
        program = Program(*args[3:])
        check(x, residual, *args[:3], program)  # type: ignore[call-arg]
        rstd = x.new_empty(x.shape[:-1], dtype=compute_dtype(x, residual))
        h = None if residual is None else residual.new_empty(residual.shape)
        mu = torch.empty_like(rstd) if program.center else None
        return _none_as_empty((x.new_empty(x.shape), h, mu, rstd), x)

    below = _for_autograd(forward)

    def autograd(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
        if forward_mode():
            return _none_as_empty(reference.forward(x, *args[:4], Program(*args[4:])), x)  # type: ignore[call-arg]
        if not needs_gradient(x, *args[:4]):
            return _below_autograd(operator)(x, *args)
        program = Program(*args[4:])
        made = differentiable_forward(below, backward, x, *args[:4], program, statistics=True)
        return _none_as_empty(made, x)

    _register("norm_forward", real, fake, autograd)


def _register_norm_backward() -> None:
    library.define(
        "norm_backward(Tensor dy, Tensor? dh, Tensor h, Tensor? pre_bias, Tensor? weight, Tensor? bias, "
        f"Tensor? mu, Tensor rstd, {_PROGRAM}, bool has_residual, bool[] wanted) "
        "-> (Tensor dx, Tensor dresidual, Tensor dpre_bias, Tensor dweight, Tensor dbias)",
        tags=_TAGS,
    )
    operator = operators.norm_backward.default

    def unpack(args: tuple[Any, ...]) -> tuple[Given, Program, bool, tuple[bool, ...]]:
        return Given(*args[:8]), Program(*args[8:13]), args[13], tuple(args[14])

    def real(*args: Any) -> tuple[Tensor, ...]:
        return _none_as_empty(execute.backward(*unpack(args)), args[0])

    def fake(*args: Any) -> tuple[Tensor, ...]:
        dy, _, h, *parameters = args[:6]
        like = (dy, h, *parameters)
        return _none_as_empty(
            [
                t.new_empty(t.shape) if want else None
                for t, want in zip(like, args[14], strict=True)
            ],
            dy,
        )

    below = _for_autograd(backward)

    def autograd(*args: Any) -> tuple[Tensor, ...]:
        if forward_mode():
            return _none_as_empty(plain_backward(*unpack(args)), args[0])
        if not needs_gradient(*args[:8]):
            return _below_autograd(operator)(*args)
        return _none_as_empty(differentiable_backward(below, *unpack(args)), args[0])

    _register("norm_backward", real, fake, autograd)


# layer_norm, rms_norm, add_layer_norm, add_rms_norm


def _register_norm(name: str) -> None:
    has_residual, norm = name.startswith("add_"), name.removeprefix("add_")
    eps = DEFAULT_EPS[norm]
    inputs = "Tensor x, Tensor residual" if has_residual else "Tensor x"
    outputs = "(Tensor y, Tensor h)" if has_residual else "Tensor"
    schema = f"{name}({inputs}, {_PARAMETERS}, *, float eps={eps}, {_OPTIONS}) -> {outputs}"
    library.define(schema, tags=_TAGS)
    operator = getattr(operators, name).default

    def adapt(body: Body) -> Callable[..., Any]:
        """A function of tensors and a Program as a function with the operator's signature."""

        def call(  # type: ignore[no-untyped-def]
            x, residual, weight=None, bias=None, pre_bias=None, *,
            eps=eps, weight_shift=0.0, activation=None, rounding="once",
        ):  # fmt: skip
            program = Program(norm == "layer_norm", eps, weight_shift, activation, rounding)
            return body(x, residual, pre_bias, weight, bias, program)

        if has_residual:
            return call
        return lambda x, *args, **kwargs: call(x, None, *args, **kwargs)

    def again(x, residual, pre_bias, weight, bias, program):  # type: ignore[no-untyped-def]
        """The same operator again, further down the dispatcher's list of keys."""
        rows = (x, residual) if has_residual else (x,)
        options = program._asdict()
        del options["center"]
        return operator(*rows, weight, bias, pre_bias, **options)

    def real(*args: Any) -> Any:
        y, h, _, _ = execute.forward(*args, False)  # type: ignore[call-arg]
        return (y, h) if has_residual else y

    def fake(x, residual, pre_bias, weight, bias, program):  # type: ignore[no-untyped-def]
        check(x, residual, pre_bias, weight, bias, program)
        y = x.new_empty(x.shape)
        return (y, residual.new_empty(residual.shape)) if has_residual else y

    below = _for_autograd(forward)

    def autograd(*args: Any) -> Any:
        if forward_mode():
            made = reference.forward(*args)
            return (made.y, made.h) if has_residual else made.y
        if needs_gradient(*args[:5]):
            return differentiable_forward(below, backward, *args)
        return _below_autograd(again)(*args)

    def autocast(x: Tensor, *args: Any) -> Any:
        # Under autocast torch runs its norms in fp32. Parameters and residual are widened in any case; the
        # residual stream keeps its own dtype, as it does in an addition.
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return again(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, *args)

    _register(name, adapt(real), adapt(fake), adapt(autograd))
    # Where torch casts its own: layer_norm in every version, rms_norm from 2.12 on.
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{norm}", "AutocastCUDA"):
        library.impl(name, adapt(autocast), "AutocastCUDA")


def _register(
    name: str, real: Callable[..., Any], fake: Callable[..., Any], autograd: Callable[..., Any]
) -> None:
    library.impl(name, real, "CompositeExplicitAutograd")
    library.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"rownorm::{name}", fake, lib=library)
    torch.library.register_vmap(
        f"rownorm::{name}", batched(getattr(operators, name).default), lib=library
    )


_register_norm_forward()
_register_norm_backward()
for _name in ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"):
    _register_norm(_name)
