"""Is anybody listening? Who is not there need not be told.

PyTorch's dispatcher exists so that tracing, transforms, subclasses, autocast and profilers can step in front of an
operator. When none of them is active, a call can go straight to its kernel, and saves several microseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def _someone() -> bool:
    """What is answered for a question that this version of PyTorch does not know."""
    return True


_PLAIN = frozenset((Tensor, Parameter))
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _someone)
_function_modes = getattr(torch._C, "_len_torch_function_stack", _someone)
_transforms = getattr(torch._C, "_are_functorch_transforms_active", _someone)
_autocast = getattr(torch._C, "_is_any_autocast_enabled", _someone)
_profiler = getattr(torch.autograd, "_profiler_enabled", _someone)


def nothing_listens(x: Tensor, *others: Tensor | None) -> bool:
    """Whether these are plain tensors and nothing stands between a caller and a kernel."""
    if (
        _is_compiling()
        or _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _autocast()
        or _profiler()
        or forward_ad._current_level >= 0
        or type(x) not in _PLAIN
        or x.is_neg()
    ):
        return False
    for t in others:
        if t is not None and (type(t) not in _PLAIN or t.is_neg()):
            return False
    return True


def forward_mode() -> bool:
    """Whether forward-mode differentiation is under way."""
    return forward_ad._current_level >= 0
