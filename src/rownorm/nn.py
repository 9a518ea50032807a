"""Drop-in modules: subclasses of torch's modules with rownorm's forward.

Each forward tries ``eager.native.module_norm`` itself. The functions between a module and that call cost more in a
training step, where their code is not in the cache, than they seem to in a loop: experiment HST-05 in
docs/experiments/host.md.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.types import Device

from .functional import default_rms_eps, layer_norm, rms_norm
from .integration import leaf_of_trace, quantize_like, refuse_torchscript
from .ops import eager
from .ops.batch_invariance import is_on, state
from .ops.fast_path import is_traced
from .program import Program

# torch.fx.symbolic_trace of a norm alone records each as one call: their code depends on sizes, which a trace does not
# have.
torch.fx.wrap("layer_norm")
torch.fx.wrap("rms_norm")


@functools.lru_cache(typed=True)  # eps=True is refused, eps=1 is not
def _program(center: bool, eps: float, out_dtype: torch.dtype | None, mode: bool) -> Program:
    return Program(center, eps, out_dtype=out_dtype, batch_invariant=mode)


class _Norm(torch.nn.Module):
    """What both norms have beside torch's: ``out_dtype``, shown by ``repr`` where it is given."""

    out_dtype: torch.dtype | None = None  # of a module that was pickled without it, too

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return shown if self.out_dtype is None else f"{shown}, out_dtype={self.out_dtype}"

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_torchscript(f"rownorm.nn.{type(self).__name__}")


class LayerNorm(_Norm, torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, same arguments, parameters and ``state_dict``, computed by rownorm.

    out_dtype: the dtype of the result, if it is not that of the input. Under ``torch.autocast`` with
    ``out_dtype=torch.bfloat16``, the linear layer that follows needs no kernel to cast its input.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        # torch takes a tuple, too, which its annotation leaves out.
        shape: Any = normalized_shape
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)
        self.out_dtype = out_dtype

    def forward(self, input: Tensor) -> Tensor:
        if type(input) is not Tensor and (leaf := leaf_of_trace(self, input)) is not None:
            return leaf
        shape, weight, bias, eps = self.normalized_shape, self.weight, self.bias, self.eps
        if not is_traced():
            program = _program(True, eps, self.out_dtype, state.is_active and is_on())
            y: Tensor = eager.native.module_norm(input, weight, bias, program, shape)
            if y is not NotImplemented:
                return y
        return layer_norm(input, shape, weight, bias, eps, out_dtype=self.out_dtype)


class RMSNorm(_Norm, torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, same arguments, parameters and ``state_dict``, computed by rownorm.

    out_dtype: as for ``LayerNorm``.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        shape: Any = normalized_shape
        super().__init__(shape, eps, elementwise_affine, device, dtype)
        self.out_dtype = out_dtype

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is not Tensor and (leaf := leaf_of_trace(self, x)) is not None:
            return leaf
        shape, weight, eps = self.normalized_shape, self.weight, self.eps
        if type(x) is Tensor and not is_traced():
            exact_eps = default_rms_eps(x.dtype) if eps is None else eps
            program = _program(False, exact_eps, self.out_dtype, state.is_active and is_on())
            y: Tensor = eager.native.module_norm(x, weight, None, program, shape)
            if y is not NotImplemented:
                return y
        return rms_norm(x, shape, weight, eps, out_dtype=self.out_dtype)


quantize_like(LayerNorm, torch.nn.LayerNorm)
