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


def nothing_listens(
    x: Tensor,
    second: Tensor | None = None,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
    fifth: Tensor | None = None,
) -> bool:
    """Whether these are plain tensors and nothing stands between a caller and a kernel."""
    # Every call pays for this: no loop, no *args, and the tensors that are not there cost a comparison.
    return not (
        _is_compiling()
        or _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _autocast()
        or _profiler()
        or forward_ad._current_level >= 0
        or _is_special(x)
        or (second is not None and _is_special(second))
        or (third is not None and _is_special(third))
        or (fourth is not None and _is_special(fourth))
        or (fifth is not None and _is_special(fifth))
    )


def _is_special(t: Tensor) -> bool:
    """A subclass, or a view whose sign only the dispatcher knows."""
    return type(t) not in _PLAIN or t.is_neg()


def forward_mode() -> bool:
    """Whether forward-mode differentiation is under way."""
    return forward_ad._current_level >= 0
