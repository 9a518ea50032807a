"""Is anybody listening? Who is not there need not be told.

PyTorch's dispatcher exists so that tracing, transforms, subclasses, autocast and profilers can step in front of an
operator. When none of them is active, a call can go straight to its kernel, and saves several microseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

_PLAIN = frozenset((Tensor, Parameter, type(None)))
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._are_functorch_transforms_active
_autocast = torch._C._is_any_autocast_enabled
_profiler = torch.autograd._profiler_enabled


def nothing_listens(*tensors: Tensor | None) -> bool:
    """Whether these are plain tensors and nothing stands between a caller and a kernel."""
    if _is_compiling():
        return False
    for t in tensors:
        if type(t) not in _PLAIN or (t is not None and t.is_neg()):
            return False
    x = tensors[0]
    assert x is not None
    return not (
        _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _autocast()
        or _profiler()
        or forward_mode()
        or x.is_meta
    )


def forward_mode() -> bool:
    """Whether forward-mode differentiation is under way."""
    return forward_ad._current_level >= 0
