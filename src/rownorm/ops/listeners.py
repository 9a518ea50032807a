"""Is anybody listening? Who is not there need not be told.

PyTorch's dispatcher exists so that tracing, transforms, subclasses, autocast and profilers can step in front of an
operator. When none of them is active, a call can go straight to its kernel, and saves several microseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def _someone(*_: object) -> bool:
    """What is answered for a question that this version of PyTorch does not know."""
    return True


_PLAIN = frozenset((Tensor, Parameter))
# Whatever else traces shows as a mode or a subclass.
_is_traced = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _someone)
_function_modes = getattr(torch._C, "_len_torch_function_stack", _someone)
_transforms = getattr(torch._C, "_are_functorch_transforms_active", _someone)
_jit_trace = getattr(torch._C, "_is_tracing", _someone)
_autocast = getattr(torch._C, "_is_any_autocast_enabled", _someone)
_profiler = getattr(torch.autograd, "_profiler_enabled", _someone)
saved_tensors_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", _someone)

# Every call pays for these questions: no loop, no *args, no further function; what is not there costs a comparison. A
# tensor is special if it is a subclass, or a view whose sign only the dispatcher knows.


def nothing_listens(
    x: Tensor,
    second: Tensor | None = None,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
    fifth: Tensor | None = None,
) -> bool:
    """Whether these are plain tensors and nothing stands between a caller and a kernel."""
    return not (
        _is_traced()
        or _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _jit_trace()
        or _autocast()
        or _profiler()
        or forward_ad._current_level >= 0
        or type(x) not in _PLAIN
        or x.is_neg()
        or (second is not None and (type(second) not in _PLAIN or second.is_neg()))
        or (third is not None and (type(third) not in _PLAIN or third.is_neg()))
        or (fourth is not None and (type(fourth) not in _PLAIN or fourth.is_neg()))
        or (fifth is not None and (type(fifth) not in _PLAIN or fifth.is_neg()))
    )


def nothing_listens_to_backward(dy: Tensor, dh: Tensor | None) -> bool:
    """The same for gradients that come in, of which no gradient is wanted; autocast leaves them alone."""
    return not (
        _is_traced()
        or _is_grad_enabled()
        or _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _profiler()
        or forward_ad._current_level >= 0
        or type(dy) is not Tensor
        or dy.is_neg()
        or (dh is not None and (type(dh) is not Tensor or dh.is_neg()))
    )


# Those of its questions that nothing has to be given to, in its order.
QUESTIONS_OF_BACKWARD = (
    _is_traced,
    _is_grad_enabled,
    _dispatch_modes,
    _function_modes,
    _transforms,
    _profiler,
)


def forward_mode() -> bool:
    """Whether forward-mode differentiation is under way."""
    return forward_ad._current_level >= 0
