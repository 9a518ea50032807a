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
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .. import reference
from .._ops import NAMESPACE, add_op_namespace_prefix
from .._ops import ops as operators
from ..program import ARGUMENTS, DEFAULT_EPS, INPUTS, WITH_RESIDUAL, Inputs, Program
from ..reference import BackwardInputs, Gradients, compute_dtype, gradients_like
from . import execute, export, inductor, schema
from .autocast import IS_CAST, autocast_program
from .autograd import (
    differentiable_backward,
    differentiable_forward,
    needs_gradient,
    plain_backward,
)
from .checks import check
from .fast_path import is_forward_mode_active
from .vmap import batched

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)

library = Library(NAMESPACE, "DEF")

# (inputs, program) -> y or (y, h). A plain tuple, because a NamedTuple costs more to build.
Body = Callable[[tuple[Any, ...], Program], Any]
N_INPUTS = len(INPUTS)


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


def forward(inputs: Sequence[Tensor | None], program: Program) -> execute.ForwardResult:
    """``torch.ops.rownorm.norm_forward``. inputs: in the order of ``Inputs``."""
    y, h, mu, rstd = operators.norm_forward(*inputs, *program)
    return y, (None if inputs[1] is None else h), (mu if program.center else None), rstd


def backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """``torch.ops.rownorm.norm_backward``."""
    outputs = operators.norm_backward(*inputs, *program, has_residual, wanted)
    return Gradients(*(t if want else None for t, want in zip(outputs, wanted, strict=True)))


def _register_norm_forward() -> None:
    library.define(schema.norm_forward(), tags=_TAGS)
    operator = operators.norm_forward.default

    def unpack(args: tuple[Any, ...]) -> tuple[Inputs, Program]:
        return Inputs(*args[:N_INPUTS]), Program(*args[N_INPUTS:])

    def real(*args: Any) -> tuple[Tensor, ...]:
        program = Program(*args[N_INPUTS:])
        return _none_as_empty(execute.forward(*args[:N_INPUTS], program, True), args[0])

    def fake(*args: Any) -> tuple[Tensor, ...]:
        inputs, program = unpack(args)
        x, residual = inputs.x, inputs.residual
        check(inputs, program)
        rstd = x.new_empty(x.shape[:-1], dtype=compute_dtype(x, residual))
        h = None if residual is None else residual.new_empty(residual.shape)
        mu = torch.empty_like(rstd) if program.center else None
        y = x.new_empty(x.shape, dtype=program.result_dtype(x.dtype))
        return _none_as_empty((y, h, mu, rstd), x)

    forward_below_autograd = _for_autograd(forward)

    def autograd(*args: Any) -> tuple[Tensor, ...]:
        if is_forward_mode_active():
            inputs, program = unpack(args)
            return _none_as_empty(reference.forward(*inputs, program), inputs.x)
        if not needs_gradient(*args[:N_INPUTS]):
            return _below_autograd(operator)(*args)
        inputs, program = unpack(args)
        outputs = differentiable_forward(
            forward_below_autograd, backward, *inputs, program, return_statistics=True
        )
        return _none_as_empty(outputs, inputs.x)

    def composed(*args: Any) -> Any:
        inputs, program = unpack(args)
        if not inductor.is_forward_composed(inputs, program):
            return NotImplemented
        return _none_as_empty(inductor.forward(inputs, program), inputs.x)

    def exported(*args: Any) -> tuple[Tensor, ...]:
        inputs, program = unpack(args)
        return _none_as_empty(export.forward(inputs, program), inputs.x)

    _register("norm_forward", real, fake, autograd, exported)
    inductor.decompositions[operator] = composed


def _register_norm_backward() -> None:
    library.define(schema.norm_backward(), tags=_TAGS)
    operator = operators.norm_backward.default
    n_inputs = len(BackwardInputs._fields)

    def unpack(args: tuple[Any, ...]) -> tuple[BackwardInputs, Program, bool, tuple[bool, ...]]:
        *options, has_residual, wanted = args[n_inputs:]
        return BackwardInputs(*args[:n_inputs]), Program(*options), has_residual, tuple(wanted)

    def real(*args: Any) -> tuple[Tensor, ...]:
        return _none_as_empty(execute.backward(*unpack(args)), args[0])

    def fake(*args: Any) -> tuple[Tensor, ...]:
        inputs, program, _, wanted = unpack(args)
        dtypes = {"x": program.result_dtype(inputs.dy.dtype)}
        gradients = [
            t.new_empty(t.shape, dtype=dtypes.get(name, t.dtype)) if want else None
            for (name, t), want in zip(gradients_like(inputs).items(), wanted, strict=True)
        ]
        return _none_as_empty(gradients, inputs.dy)

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


def _arguments(has_residual: bool) -> list[str]:
    """The tensors of an operator, in its order."""
    return [name for name in ARGUMENTS if has_residual or name not in WITH_RESIDUAL]


# By whether there is a residual: the operator's arguments, as indices of the inputs.
_ORDER = {
    has_residual: tuple(map(list(INPUTS).index, _arguments(has_residual)))
    for has_residual in (False, True)
}


def call_operator(inputs: tuple[Any, ...], program: Program) -> Any:
    """The operator of a public function: y, or (y, h) with a residual."""
    has_residual = inputs[1] is not None
    operator = getattr(operators, f"add_{program.name}" if has_residual else program.name)
    return operator(*[inputs[i] for i in _ORDER[has_residual]], **program.operator_keywords())


def _register_norm(name: str) -> None:
    has_residual, norm = name.startswith("add_"), name.removeprefix("add_")
    library.define(schema.norm(name), tags=_TAGS)
    operator = getattr(operators, name).default

    def adapt(body: Body) -> Callable[..., Any]:
        """A function of tensors and a Program as a function with the operator's signature.

        PyTorch passes only options that differ from their defaults.
        """
        make_program = functools.partial(Program, norm == "layer_norm", eps=DEFAULT_EPS[norm])
        default_program = make_program()
        names = _arguments(has_residual)
        # Of each input among the arguments; -1: the None after the last.
        take_inputs = itemgetter(*(names.index(one) if one in names else -1 for one in INPUTS))
        absent = (None,) * (len(names) + 1)

        def call(*args: Any, **options: Any) -> Any:
            n = len(args)
            if options:
                args += tuple(options.pop(one, None) for one in names[n:])
                n = len(names)
            inputs = take_inputs(args + absent[n:])
            return body(inputs, make_program(**options) if options else default_program)

        return call

    take_arguments = itemgetter(*_ORDER[has_residual])

    def redispatch(inputs: tuple[Any, ...], program: Program) -> Any:
        """Call the same operator, for the dispatch keys that remain."""
        return operator(*take_arguments(inputs), **program.operator_keywords())

    def real(inputs: tuple[Any, ...], program: Program) -> Any:
        y, h, _, _ = execute.forward(*inputs, program, False)
        return (y, h) if has_residual else y

    def fake(inputs: tuple[Any, ...], program: Program) -> Any:
        check(inputs, program)
        x, residual = inputs[:2]
        y = x.new_empty(x.shape, dtype=program.result_dtype(x.dtype))
        return y if residual is None else (y, residual.new_empty(residual.shape))

    forward_below_autograd = _for_autograd(forward)

    def autograd(inputs: tuple[Any, ...], program: Program) -> Any:
        if is_forward_mode_active():
            outputs = reference.forward(*Inputs(*inputs), program)
            return (outputs.y, outputs.h) if has_residual else outputs.y
        if needs_gradient(*inputs):
            return differentiable_forward(forward_below_autograd, backward, *inputs, program)
        return _below_autograd(redispatch)(inputs, program)

    def autocast(inputs: tuple[Any, ...], program: Program) -> Any:
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return redispatch(inputs, autocast_program(inputs[0].dtype, program))

    def composed(inputs: tuple[Any, ...], program: Program) -> Any:
        tensors = Inputs(*inputs)
        if not inductor.is_forward_composed(tensors, program):
            return NotImplemented
        outputs = inductor.forward(tensors, program)
        return (outputs.y, outputs.h) if has_residual else outputs.y

    def exported(inputs: tuple[Any, ...], program: Program) -> Any:
        outputs = export.forward(Inputs(*inputs), program)
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

    torch.library.register_fake(add_op_namespace_prefix(name), fake_with_rules, lib=library)
    torch.library.register_vmap(
        add_op_namespace_prefix(name), batched(getattr(operators, name).default), lib=library
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
