"""When a call may skip PyTorch's dispatcher.

The dispatcher lets tracers, transforms, modes, tensor subclasses, autocast and profilers intercept an operator. When
none of them is active, a call can go straight to its kernel, which saves several microseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def _assume_active(*_: object) -> bool:
    """Stands in for a function that this version of PyTorch lacks: the dispatcher is then always used."""
    return True


_PLAIN = frozenset((Tensor, Parameter))
# Any other tracer shows as a mode or as a tensor subclass.
_is_traced = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _assume_active)
_function_modes = getattr(torch._C, "_len_torch_function_stack", _assume_active)
_transforms = getattr(torch._C, "_are_functorch_transforms_active", _assume_active)
_jit_trace = getattr(torch._C, "_is_tracing", _assume_active)
_autocast = getattr(torch._C, "_is_any_autocast_enabled", _assume_active)
_profiler = getattr(torch.autograd, "_profiler_enabled", _assume_active)
saved_tensors_hooks = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", _assume_active
)

# Every call pays for these two functions, so they have no loop, no *args and no helper functions; a tensor that is None
# costs one comparison. A tensor is not plain if it is a subclass, or a view with the negative bit, which only the
# dispatcher resolves.


def can_skip_dispatcher(
    x: Tensor,
    second: Tensor | None = None,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
    fifth: Tensor | None = None,
) -> bool:
    """Whether these are plain tensors and nothing that intercepts operators is active."""
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


def can_skip_dispatcher_in_backward(dy: Tensor, dh: Tensor | None) -> bool:
    """The same for incoming gradients, where no second derivative is wanted. Autocast does not change gradients."""
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


# Its conditions that need no argument, in its order, for the C extension.
BACKWARD_CONDITIONS = (
    _is_traced,
    _is_grad_enabled,
    _dispatch_modes,
    _function_modes,
    _transforms,
    _profiler,
)


def is_forward_mode_active() -> bool:
    """Whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0
