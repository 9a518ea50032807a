"""The operators ``torch.ops.rownorm.*`` and their registrations with PyTorch.

    layer_norm, rms_norm                 the public functions, one output
    add_layer_norm, add_rms_norm         with a residual, two outputs
    norm_forward                         (y, h, mu, rstd), for autograd, when a gradient will be needed
    norm_backward                        its gradients

Every operator calls ``execute`` on real tensors. The other registrations allow it to be traced, compiled, exported,
differentiated, vmapped, autocast and sharded. Forward-mode differentiation goes through plain PyTorch (``reference``),
and so does a compiled graph for rows of moderate width (``inductor``) and a program for other runtimes (``export``).
An operator has to return tensors: ``norm_forward`` and ``norm_backward`` return an empty tensor for None.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .. import reference
from ..program import DEFAULT_EPS, Program
from ..reference import BackwardInputs, Gradients, compute_dtype
from . import execute, export, inductor
from .autocast import IS_CAST, autocast_program
from .autograd import (
    differentiable_backward,
    differentiable_forward,
    needs_gradient,
    plain_backward,
)
from .checks import check
from .fast_path import is_forward_mode_active
from .schema import option_arguments, program_arguments
from .vmap import batched

_PARAMETERS = "Tensor? weight=None, Tensor? bias=None, Tensor? pre_bias=None"
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
    """The operator as an autograd function calls it: with gradients enabled, for an outer transform that needs them."""

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
) -> execute.ForwardResult:
    """``torch.ops.rownorm.norm_forward``."""
    y, h, mu, rstd = operators.norm_forward(x, residual, pre_bias, weight, bias, *program)
    return y, (None if residual is None else h), (mu if program.center else None), rstd


def backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """``torch.ops.rownorm.norm_backward``."""
    outputs = operators.norm_backward(*inputs, *program, has_residual, wanted)
    return Gradients(*(t if want else None for t, want in zip(outputs, wanted, strict=True)))


def _register_norm_forward() -> None:
    library.define(
        "norm_forward(Tensor x, Tensor? residual, Tensor? pre_bias, Tensor? weight, Tensor? bias, "
        f"{program_arguments()}) -> (Tensor y, Tensor h, Tensor mu, Tensor rstd)",
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
        y = x.new_empty(x.shape, dtype=program.result_dtype(x.dtype))
        return _none_as_empty((y, h, mu, rstd), x)

    forward_below_autograd = _for_autograd(forward)

    def autograd(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
        if is_forward_mode_active():
            return _none_as_empty(reference.forward(x, *args[:4], Program(*args[4:])), x)  # type: ignore[call-arg]
        if not needs_gradient(x, *args[:4]):
            return _below_autograd(operator)(x, *args)
        program = Program(*args[4:])
        outputs = differentiable_forward(
            forward_below_autograd, backward, x, *args[:4], program, return_statistics=True
        )
        return _none_as_empty(outputs, x)

    def composed(x: Tensor, *args: Any) -> Any:
        program = Program(*args[4:])
        if not inductor.is_composed(x, program):
            return NotImplemented
        return _none_as_empty(inductor.forward(x, *args[:4], program), x)  # type: ignore[call-arg]

    def exported(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
        return _none_as_empty(export.forward(x, *args[:4], Program(*args[4:])), x)  # type: ignore[call-arg]

    _register("norm_forward", real, fake, autograd, exported)
    inductor.decompositions[operator] = composed


def _register_norm_backward() -> None:
    library.define(
        "norm_backward(Tensor dy, Tensor? dh, Tensor h, Tensor? pre_bias, Tensor? weight, Tensor? bias, "
        f"Tensor? mu, Tensor rstd, {program_arguments()}, bool has_residual, bool[] wanted) "
        "-> (Tensor dx, Tensor dresidual, Tensor dpre_bias, Tensor dweight, Tensor dbias)",
        tags=_TAGS,
    )
    operator = operators.norm_backward.default
    n_inputs = len(BackwardInputs._fields)

    def unpack(args: tuple[Any, ...]) -> tuple[BackwardInputs, Program, bool, tuple[bool, ...]]:
        *options, has_residual, wanted = args[n_inputs:]
        return BackwardInputs(*args[:n_inputs]), Program(*options), has_residual, tuple(wanted)

    def real(*args: Any) -> tuple[Tensor, ...]:
        return _none_as_empty(execute.backward(*unpack(args)), args[0])

    def fake(*args: Any) -> tuple[Tensor, ...]:
        dy, _, h, *parameters = args[:6]
        _, program, _, wanted = unpack(args)
        dtypes = (
            program.result_dtype(dy.dtype),
            h.dtype,
            *(None if t is None else t.dtype for t in parameters),
        )
        gradients = [
            t.new_empty(t.shape, dtype=dtype) if want else None
            for t, dtype, want in zip((dy, h, *parameters), dtypes, wanted, strict=True)
        ]
        return _none_as_empty(gradients, dy)

    backward_below_autograd = _for_autograd(backward)

    def autograd(*args: Any) -> tuple[Tensor, ...]:
        if is_forward_mode_active():
            return _none_as_empty(plain_backward(*unpack(args)), args[0])
        if not needs_gradient(*args[:n_inputs]):
            return _below_autograd(operator)(*args)
        gradients = differentiable_backward(backward_below_autograd, *unpack(args))
        return _none_as_empty(gradients, args[0])

    def exported(*args: Any) -> tuple[Tensor, ...]:
        return _none_as_empty(reference.backward(*unpack(args)), args[0])

    def composed(*args: Any) -> Any:
        inputs, program, _, _ = unpack(args)
        return exported(*args) if inductor.is_composed(inputs.h, program) else NotImplemented

    _register("norm_backward", real, fake, autograd, exported)
    inductor.decompositions[operator] = composed


# layer_norm, rms_norm, add_layer_norm, add_rms_norm


def _register_norm(name: str) -> None:
    has_residual, norm = name.startswith("add_"), name.removeprefix("add_")
    eps = DEFAULT_EPS[norm]
    inputs = "Tensor x, Tensor residual" if has_residual else "Tensor x"
    outputs = "(Tensor y, Tensor h)" if has_residual else "Tensor"
    schema = f"{name}({inputs}, {_PARAMETERS}, *, {option_arguments(eps)}) -> {outputs}"
    library.define(schema, tags=_TAGS)
    operator = getattr(operators, name).default

    def adapt(body: Body) -> Callable[..., Any]:
        """A function of tensors and a Program as a function with the operator's signature.

        PyTorch passes only options that differ from their defaults.
        """
        make_program = functools.partial(Program, norm == "layer_norm", eps=eps)
        default_program = make_program()

        def call(x, residual, weight=None, bias=None, pre_bias=None, **options):  # type: ignore[no-untyped-def]
            program = make_program(**options) if options else default_program
            return body(x, residual, pre_bias, weight, bias, program)

        if has_residual:
            return call
        return lambda x, *args, **kwargs: call(x, None, *args, **kwargs)

    def redispatch(x, residual, pre_bias, weight, bias, program):  # type: ignore[no-untyped-def]
        """Call the same operator, for the dispatch keys that remain."""
        rows = (x, residual) if has_residual else (x,)
        return operator(*rows, weight, bias, pre_bias, **program.keywords())

    def real(*args: Any) -> Any:
        y, h, _, _ = execute.forward(*args, False)  # type: ignore[call-arg]
        return (y, h) if has_residual else y

    def fake(x, residual, pre_bias, weight, bias, program):  # type: ignore[no-untyped-def]
        check(x, residual, pre_bias, weight, bias, program)
        y = x.new_empty(x.shape, dtype=program.result_dtype(x.dtype))
        return (y, residual.new_empty(residual.shape)) if has_residual else y

    forward_below_autograd = _for_autograd(forward)

    def autograd(*args: Any) -> Any:
        if is_forward_mode_active():
            outputs = reference.forward(*args)
            return (outputs.y, outputs.h) if has_residual else outputs.y
        if needs_gradient(*args[:5]):
            return differentiable_forward(forward_below_autograd, backward, *args)
        return _below_autograd(redispatch)(*args)

    def autocast(x: Tensor, *args: Any) -> Any:
        *tensors, program = args
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return redispatch(x, *tensors, autocast_program(x.dtype, program))  # type: ignore[call-arg]

    def composed(*args: Any) -> Any:
        if not inductor.is_composed(args[0], args[-1]):
            return NotImplemented
        outputs = inductor.forward(*args)
        return (outputs.y, outputs.h) if has_residual else outputs.y

    def exported(*args: Any) -> Any:
        outputs = export.forward(*args)
        return (outputs.y, outputs.h) if has_residual else outputs.y

    _register(name, adapt(real), adapt(fake), adapt(autograd), adapt(exported))
    inductor.decompositions[operator] = adapt(composed)
    if IS_CAST[norm == "layer_norm"]:
        library.impl(name, adapt(autocast), "AutocastCUDA")


def _register(
    name: str,
    real: Callable[..., Any],
    fake: Callable[..., Any],
    autograd: Callable[..., Any],
    exported: Callable[..., Any],
) -> None:
    library.impl(name, real, "CompositeExplicitAutograd")
    library.impl(name, autograd, "Autograd")

    def fake_with_rules(*args: Any, **kwargs: Any) -> Any:
        _load_sharding_rules()
        inductor.register_while_compiling()
        return fake(*args, **kwargs)

    torch.library.register_fake(f"rownorm::{name}", fake_with_rules, lib=library)
    torch.library.register_vmap(
        f"rownorm::{name}", batched(getattr(operators, name).default), lib=library
    )
    export.register(library, name, exported)


def _load_sharding_rules() -> None:
    """Load ``sharding`` if the program has imported DTensor.

    The fake implementations call it, because DTensor runs them for the shapes of the outputs before it looks for a
    rule: in eager mode, compiled and in inference mode. Calls on plain tensors do not pay for it.
    """
    if "torch.distributed.tensor" in sys.modules:
        from . import sharding  # noqa: F401


_register_norm_forward()
_register_norm_backward()
for _name in ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"):
    _register_norm(_name)
