"""The operators as PyTorch's operators, in programs that leave this process.

``torch.export.export`` keeps ``torch.ops.rownorm.*``. The steps after it replace them, so that what they make runs
where rownorm is not installed: ``ExportedProgram.run_decompositions``, and all that calls it (``torch.onnx.export``,
converters to other runtimes), and AOTInductor. The steps have nothing to do with each other but this: after autograd,
they trace the program through a ``FunctionalTensorMode``, whose rule for the operators is here. torch.compile uses that
mode, too, and keeps the operators: for Inductor see ``inductor``.

An operator stays where the table of decompositions is empty, or has an entry of its own for it. To keep one:

    table = torch.export.default_decompositions()
    table[torch.ops.rownorm.rms_norm.default] = lambda *args, **options: NotImplemented
    program = program.run_decompositions(table)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental import proxy_tensor
from torch.library import Library

from .. import reference
from .._ops import add_op_namespace_prefix
from ..program import Inputs, Program
from ..reference import ForwardOutputs
from . import inductor

# What ``forward`` computes. Another option or tensor is left to ``reference``.
OPTIONS = (
    *("weight_shift", "scale_shift", "activation", "gate_activation", "gate_first"),
    *("rounding", "out_dtype"),
)
INPUTS = (
    *("x", "residual", "pre_bias", "weight", "bias", "scale", "shift", "residual_gate", "gate"),
)


def register(library: Library, name: str, decomposition: Callable[..., Any]) -> None:
    """Replace the operator ``name`` by ``decomposition``, a function with its signature."""

    def rule(mode: Any, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_replaced(mode, operator):
            return mode.__torch_dispatch__(operator, types, args, kwargs)
        with mode:
            return decomposition(*args, **kwargs)

    torch.library.register_torch_dispatch(
        add_op_namespace_prefix(name), FunctionalTensorMode, rule, lib=library
    )


def _is_replaced(mode: FunctionalTensorMode, operator: Any) -> bool:
    if mode.pre_dispatch or not (mode.export or torch.compiler.is_exporting()):
        return False
    table = _table()
    # Every table has sym_numel: torch's tracer adds it.
    if not table.keys() - {torch.ops.aten.sym_numel.default}:
        return False
    return table.get(operator) in (None, inductor.decompositions[operator])


def _table() -> Mapping[Any, Callable[..., Any]]:
    """The decompositions of the graph that is being traced. Before that, when torch runs it for its shapes, none."""
    tracer = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    if tracer is None:
        return {}
    if hasattr(tracer, "decomposition_table"):
        return tracer.decomposition_table
    return proxy_tensor.CURRENT_DECOMPOSITION_TABLE  # type: ignore[attr-defined]  # torch 2.11


def forward(inputs: Inputs, program: Program) -> ForwardOutputs:
    """As ``reference.forward``, with few operators, and those that other runtimes know: as accurate as PyTorch's norms.

    y and h are contiguous, as those of the operator: the rest of the program may be traced already, with views of them.
    """
    x, residual, weight, bias = inputs.x.contiguous(), inputs.residual, inputs.weight, inputs.bias
    has_gate_and_rounds = inputs.gate is not None and program.rounding != "once"
    is_known = program.has_only(*OPTIONS) and inputs.has_only(*INPUTS)
    if not is_known or program.rounding == "each" or has_gate_and_rounds:
        return reference.forward(*inputs._replace(x=x), program)
    residual = None if residual is None else residual.contiguous()
    h = reference.prologue(x, residual, inputs.pre_bias, inputs.residual_gate)
    first, last = reference.gate_factors(inputs.gate, program, h.dtype)
    u = reference.times(h, first)
    rounds_x_hat = program.rounding == "llama"
    mu = None
    if program.center:
        factor = reference.factor(weight, program.weight_shift, h.dtype)
        shift = None if bias is None else bias.to(h.dtype)
        parameters = (None, None) if rounds_x_hat else (factor, shift)
        z, mu, rstd = torch.native_layer_norm(u, h.shape[-1:], *parameters, program.eps)
    else:
        rstd = torch.rsqrt(u.square().mean(-1, keepdim=True) + program.eps)
        z = u * rstd
    if rounds_x_hat:
        z = _rounded(z.to(x.dtype)).to(h.dtype)
    if rounds_x_hat or not program.center:
        z = reference.affine(z, weight, bias, program)
    z = reference.modulate(z, inputs.scale, inputs.shift, program)
    stored_h = None if residual is None else h.to(residual.dtype)
    mu, rstd = reference.stored_h_moments(stored_h, mu, rstd, program, first)
    y = reference.times(reference.activate(z, program.activation), last)
    return reference.forward_outputs(y.to(program.result_dtype(x.dtype)), stored_h, mu, rstd)


def _rounded(x_hat: Tensor) -> Tensor:
    """``x_hat``, whose rounding AOTInductor would leave out. Other runtimes round, and have no operators on bits."""
    virtualized = sys.modules.get("torch._inductor.virtualized")
    is_for_inductor = virtualized is not None and virtualized.V.aot_compilation
    return inductor.rounded(x_hat) if is_for_inductor else x_hat
