"""When a call may skip PyTorch's dispatcher.

The dispatcher lets tracers, transforms, modes and tensor subclasses intercept an operator. When none of them is active,
a call can go straight to its kernel, which saves several microseconds. Three settings that are on during whole training
steps do not need the dispatcher either:

    autocast            ``autocast`` changes the options of a call as the dispatcher would
    profilers           the call records itself: ``profiled``
    a default device    a function mode that changes only functions that allocate: ``default_device_is_set``. While it
                        is on, every attribute of a tensor costs a call of Python, so it is disabled inside.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._device import DeviceContext


def _assume_active(*_: object) -> bool:
    """Stands in for a function that this version of PyTorch lacks: the dispatcher is then always used."""
    return True


_PLAIN = frozenset((Tensor, Parameter))
# Any other tracer shows as a mode or as a tensor subclass.
is_traced = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
has_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _assume_active)
# False where function modes are disabled, even if there are some.
has_function_modes = getattr(torch._C, "_is_torch_function_mode_enabled", _assume_active)
_transforms = getattr(torch._C, "_are_functorch_transforms_active", _assume_active)
_jit_trace = getattr(torch._C, "_is_tracing", _assume_active)
is_autocast_enabled = torch._C._is_any_autocast_enabled
is_profiler_enabled = torch._C._autograd._profiler_enabled
# ``with profiled(name):`` the block is an operator in the trace.
profiled = torch._C._profiler._RecordFunctionFast
disable_function_modes = torch._C.DisableTorchFunction
saved_tensors_hooks = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", _assume_active
)

# Every call pays for these two functions, so they have no loop and no helper functions; a tensor that is None costs one
# comparison. A tensor is not plain if it is a subclass, a view with the negative bit, or a tensor of zeros that has no
# memory (torch._efficientzerotensor, which autograd makes for zero gradients). Only the dispatcher resolves those.


def can_skip_dispatcher(
    x: Tensor,
    second: Tensor | None = None,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
    fifth: Tensor | None = None,
    sixth: Tensor | None = None,
    seventh: Tensor | None = None,
    eighth: Tensor | None = None,
    ninth: Tensor | None = None,
    *more: Tensor | None,
) -> bool:
    """Whether these are plain tensors and nothing that intercepts operators is active."""
    return not (
        is_traced()
        or has_dispatch_modes()
        or has_function_modes()
        or _transforms()
        or _jit_trace()
        or forward_ad._current_level >= 0
        or type(x) not in _PLAIN
        or x.is_neg()
        or x._is_zerotensor()
        or (
            second is not None
            and (type(second) not in _PLAIN or second.is_neg() or second._is_zerotensor())
        )
        or (
            third is not None
            and (type(third) not in _PLAIN or third.is_neg() or third._is_zerotensor())
        )
        or (
            fourth is not None
            and (type(fourth) not in _PLAIN or fourth.is_neg() or fourth._is_zerotensor())
        )
        or (
            fifth is not None
            and (type(fifth) not in _PLAIN or fifth.is_neg() or fifth._is_zerotensor())
        )
        or (
            sixth is not None
            and (type(sixth) not in _PLAIN or sixth.is_neg() or sixth._is_zerotensor())
        )
        or (
            seventh is not None
            and (type(seventh) not in _PLAIN or seventh.is_neg() or seventh._is_zerotensor())
        )
        or (
            eighth is not None
            and (type(eighth) not in _PLAIN or eighth.is_neg() or eighth._is_zerotensor())
        )
        or (
            ninth is not None
            and (type(ninth) not in _PLAIN or ninth.is_neg() or ninth._is_zerotensor())
        )
        or (len(more) > 0 and not can_skip_dispatcher(x, *more))
    )


def can_skip_dispatcher_in_backward(dy: Tensor, dh: Tensor | None) -> bool:
    """The same for incoming gradients, where no second derivative is wanted."""
    return not (
        is_traced()
        or _is_grad_enabled()
        or has_dispatch_modes()
        or has_function_modes()
        or _transforms()
        or forward_ad._current_level >= 0
        or type(dy) is not Tensor
        or dy.is_neg()
        or dy._is_zerotensor()
        or (dh is not None and (type(dh) is not Tensor or dh.is_neg() or dh._is_zerotensor()))
    )


# The conditions of ``can_skip_dispatcher`` that need no argument, for the C extension, which a tracer never runs. It
# asks for function modes by itself. ``norms._norm`` records a call where a profiler is on.
CONDITIONS = (has_dispatch_modes, _transforms, _jit_trace, is_profiler_enabled)


def default_device_is_set() -> bool:
    """Whether ``torch.set_default_device`` or ``with torch.device(...)`` is in effect, and no other function mode."""
    if not has_function_modes():
        return False
    modes = range(torch._C._len_torch_function_stack())
    return all(type(torch._C._get_function_stack_at(i)) is DeviceContext for i in modes)


def is_forward_mode_active() -> bool:
    """Whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0
