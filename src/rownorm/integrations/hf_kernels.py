"""Layers for Hugging Face's package ``kernels``, whose ``kernelize`` gives their ``forward`` to modules of a model.

So ``self`` is a module of another class. What that class computes is found by the probe of ``rownorm.patch``, once for
modules of one class with equal attributes. A module that computes something else, and a call with dtypes that were not
proved, keeps the forward of its class.

``kernels`` accepts a layer without a constructor and without members beside ``has_backward`` and ``can_torch_compile``.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import functional
from ..ops import layer_norm, rms_norm
from ..patching.candidates import LeftAlone, candidate_of, shallow_copy, torch_forward
from ..patching.forms import DtypePair, Form
from ..patching.probe import Prober
from ..program import GateActivation, Rounding

log = logging.getLogger(__name__)


class RMSNorm(nn.Module):
    """The forward of any RMSNorm: transformers' layer name ``RMSNorm``."""

    has_backward = True
    can_torch_compile = True

    def forward(self, hidden_states: Tensor) -> Tensor:
        if torch_forward(self) is nn.RMSNorm:
            shape: Any = self.normalized_shape
            return functional.rms_norm(hidden_states, shape, self.weight, self.eps)  # type: ignore[arg-type]
        return _norm(self, hidden_states)


class RMSNormGated(nn.Module):
    """The forward of any gated RMSNorm: transformers' layer name ``RMSNormGated``."""

    has_backward = True
    can_torch_compile = True

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return _norm(self, hidden_states, gate)


class RMSNormZeroCentered(nn.Module):
    """The forward of an RMSNorm that stores ``weight - 1``: transformers' layer name ``RMSNormZeroCentered``."""

    has_backward = True
    can_torch_compile = True

    def forward(self, x: Tensor) -> Tensor:
        return _norm(self, x)


class LayerNorm(nn.Module):
    """The forward of any LayerNorm, ``torch.nn.LayerNorm`` too."""

    has_backward = True
    can_torch_compile = True

    def forward(self, input: Tensor) -> Tensor:
        if torch_forward(self) is nn.LayerNorm:
            shape: Any = self.normalized_shape
            return functional.layer_norm(input, shape, self.weight, self.bias, self.eps)  # type: ignore[arg-type]
        return _norm(self, input)


class _Call(NamedTuple):
    """The arguments of ``layer_norm`` or ``rms_norm`` that reproduce a module, for one pair of dtypes."""

    center: bool
    weight: str | None  # attributes of the module
    bias: str | None
    width: int | None
    is_gated: bool
    gate_activation: GateActivation | None
    gate_first: bool
    group_cols: int | None
    eps: float
    weight_shift: float
    rounding: Rounding
    out_dtype: torch.dtype | None


def _norm(module: Any, x: Tensor, *gates: Tensor | None) -> Tensor:
    """What the forward of the module's class computes. gates: none, or the second argument of that forward."""
    is_traced = torch.compiler.is_compiling()
    call = _traced_call_of(id(module), x.dtype) if is_traced else _call_of(module, x.dtype)
    gate = gates[0] if gates else None
    if (
        call is None
        or (call.width is not None and x.shape[-1] != call.width)
        or call.is_gated != (gate is not None)
        or (gate is not None and (gate.dtype != x.dtype or gate.shape != x.shape))
    ):
        return type(module).forward(module, x, *gates)
    norm = layer_norm if call.center else rms_norm
    return norm(
        x,
        None if call.weight is None else getattr(module, call.weight),
        None if call.bias is None else getattr(module, call.bias),
        eps=call.eps,
        weight_shift=call.weight_shift,
        gate=gate,
        gate_activation=call.gate_activation,
        gate_first=call.gate_first,
        rounding=call.rounding,
        out_dtype=call.out_dtype,
        group_cols=call.group_cols,
    )


_prober = Prober(torch.float32)
_calls: weakref.WeakKeyDictionary[nn.Module, dict[DtypePair, _Call]] = weakref.WeakKeyDictionary()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _traced_call_of(identity: int, dtype: torch.dtype) -> _Call | None:
    """``_call_of`` for the module of this ``id``, which lives because torch.compile traces it.

    torch.compile calls this function when it traces. It would not pass the module with torch 2.11; ``id`` is a constant
    of a graph, as the parameters' dtypes are.
    """
    return _call_of(ctypes.cast(identity, ctypes.py_object).value, dtype)


def _call_of(module: nn.Module, dtype: torch.dtype) -> _Call | None:
    """The call for rows of this dtype, or None where none was proved."""
    try:
        calls = _calls[module]
    except KeyError:
        form = _probed(module)
        calls = _calls[module] = {} if form is None else _calls_of(form)
    if not calls:
        return None
    call = next(iter(calls.values()))
    name = call.weight or call.bias
    return calls.get((dtype, None if name is None else getattr(module, name).dtype))


def _calls_of(form: Form) -> dict[DtypePair, _Call]:
    beside = form.structure._asdict() | {"width": form.width}
    values = {pair: beside | options for pair, options in form.keywords.items()}
    return {pair: _Call(*(of[name] for name in _Call._fields)) for pair, of in values.items()}


def _probed(module: nn.Module) -> Form | None:
    own = shallow_copy(module)
    own.__dict__.pop("forward", None)  # this layer's
    try:
        candidate = candidate_of(own)
        form = None if candidate is None else _prober.form_of(candidate)
        reason = "it is no norm"
    except LeftAlone as error:
        form, reason = None, str(error)
    if form is None:
        _warn_once(type(module), reason)  # type: ignore[arg-type]  # mypy: a class is no Hashable
    return form


@functools.cache
def _warn_once(norm: type[nn.Module], reason: str) -> None:
    log.warning("%s keeps its own forward: %s", norm.__name__, reason)
