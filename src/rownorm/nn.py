"""Drop-in modules: subclasses of torch's modules with rownorm's forward.

Each forward tries ``eager.native.norm`` itself. The functions between a module and that call cost more in a training
step, where their code is not in the cache, than they seem to in a loop: experiment HST-05 in docs/experiments/host.md.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .functional import default_rms_eps, layer_norm, rms_norm
from .ops import eager
from .ops.fast_path import is_traced
from .program import Program

# torch.fx.symbolic_trace records each as one call: their code depends on sizes, which a trace does not have.
torch.fx.wrap("layer_norm")
torch.fx.wrap("rms_norm")


@functools.lru_cache(typed=True)  # eps=True is refused, eps=1 is not
def _program(center: bool, eps: float, out_dtype: torch.dtype | None) -> Program:
    return Program(center, eps, out_dtype=out_dtype)


class _OutDtype(torch.nn.Module):
    """The keyword ``out_dtype`` for torch's norms, shown by ``repr`` where it is given."""

    out_dtype: torch.dtype | None = None  # of a module that was pickled without it, too

    def __init__(self, *args: Any, out_dtype: torch.dtype | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.out_dtype = out_dtype

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return shown if self.out_dtype is None else f"{shown}, out_dtype={self.out_dtype}"


class LayerNorm(_OutDtype, torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, same arguments, parameters and ``state_dict``, computed by rownorm.

    out_dtype: the dtype of the result, if it is not that of the input. Under ``torch.autocast`` with
    ``out_dtype=torch.bfloat16``, the linear layer that follows needs no kernel to cast its input.
    """

    def forward(self, input: Tensor) -> Tensor:
        shape, weight, bias, eps = self.normalized_shape, self.weight, self.bias, self.eps
        if not is_traced():
            program = _program(True, eps, self.out_dtype)
            y: Tensor = eager.native.norm(input, None, None, weight, bias, program, shape)
            if y is not NotImplemented:
                return y
        return layer_norm(input, shape, weight, bias, eps, out_dtype=self.out_dtype)


class RMSNorm(_OutDtype, torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, same arguments, parameters and ``state_dict``, computed by rownorm.

    out_dtype: as for ``LayerNorm``.
    """

    def forward(self, x: Tensor) -> Tensor:
        shape, weight, eps = self.normalized_shape, self.weight, self.eps
        if type(x) is Tensor and not is_traced():
            exact_eps = default_rms_eps(x.dtype) if eps is None else eps
            program = _program(False, exact_eps, self.out_dtype)
            y: Tensor = eager.native.norm(x, None, None, weight, None, program, shape)
            if y is not NotImplemented:
                return y
        return rms_norm(x, shape, weight, eps, out_dtype=self.out_dtype)
