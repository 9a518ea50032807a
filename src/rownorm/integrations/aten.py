"""PyTorch's own norms computed by rownorm, for models whose source cannot be changed.

Four operators get another kernel for CUDA tensors: ``aten::_fused_rms_norm``, which ``torch.rms_norm`` calls,
``aten::native_layer_norm``, which ``torch.layer_norm`` calls, and the backward of both. Autograd stays PyTorch's, so a
forward pass of one implementation may be followed by the backward pass of the other. What rownorm does not compute goes
to the kernel that was there before.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..functional import default_rms_eps
from ..ops import execute
from ..ops.batch_invariance import is_on, state
from ..program import DTYPES, Inputs, Program
from ..reference import BackwardInputs, compute_dtype


class OverriddenAten(contextlib.AbstractContextManager["OverriddenAten"]):
    """What ``override_aten`` returns. ``undo`` ends the override, and so does the end of a ``with`` statement."""

    def __init__(self, key: str) -> None:
        self._key: str | None = key

    def undo(self) -> None:
        """End this override. A second call does nothing."""
        with _lock:
            key, self._key = self._key, None
            if key is not None:
                _registrations[key].leave()

    def __exit__(self, *_: object) -> None:
        self.undo()


def override_aten() -> OverriddenAten:
    """Let rownorm compute PyTorch's own LayerNorm and RMSNorm of CUDA tensors, forward and backward.

    It begins with the call and holds for the whole process, in every thread, until ``undo()`` of the result or the end
    of ``with rownorm.override_aten():``. Calls may be nested and may end in any order. After the last one the
    dispatcher has the kernels that it had.

    It is for models whose source cannot be changed: ``rownorm.patch`` and ``rownorm.nn`` cost the host less for each
    call. Calls that rownorm does not compute, such as those with a weight of another dtype than x, take PyTorch's
    kernel. Graphs that torch.compile makes with Inductor have no such operators and do not change.
    """
    return _override("CUDA")


def _override(key: str) -> OverriddenAten:
    """``override_aten`` for a dispatch key. Tests on a machine without a GPU pass ``"CPU"``."""
    with _lock:
        _registrations.setdefault(key, _Registration(key)).enter()
    return OverriddenAten(key)


class _Registration:
    """The kernels of one dispatch key, registered while at least one override is in effect."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._n_entered = 0
        self._library: Any = None

    def enter(self) -> None:
        self._n_entered += 1
        if self._n_entered > 1:
            return
        self._library = torch.library.Library("aten", "IMPL")
        # The dispatcher tells the process once that a kernel is overridden.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            for name, kernel in _KERNELS.items():
                self._library.impl(
                    name, _with_original(name, self._key, kernel), self._key, with_keyset=True
                )

    def leave(self) -> None:
        self._n_entered -= 1
        if self._n_entered == 0:
            self._library._destroy()
            self._library = None


_lock = threading.Lock()
_registrations: dict[str, _Registration] = {}


def _with_original(name: str, key: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel``, and for arguments of which it returns NotImplemented, the kernel that the operator has now."""
    original: Any = None
    if torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", key):
        original = torch.library.get_kernel(f"aten::{name}", key)

    def call(keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        outputs = kernel(*args)
        if outputs is not NotImplemented:
            return outputs
        if original is None:
            raise NotImplementedError(
                f"aten::{name}: this build of PyTorch has no kernel of its own for {key}, and rownorm does not compute "
                "these arguments"
            )
        return original.call_boxed(keys, *args)

    return call


def _fused_rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> Any:
    return _forward(
        x, shape, weight, None, default_rms_eps(x.dtype) if eps is None else eps, center=False
    )


def _forward(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    center: bool,
) -> Any:
    """(y, mean, rstd), without the mean unless ``center``: the statistics have 1 for each dimension that is reduced."""
    if not _is_computed(x, shape, weight, bias) or not math.isfinite(eps):
        return NotImplemented
    inputs = Inputs(_rows(x, shape), None, None, _vector(weight), _vector(bias))
    y, _, mu, rstd = execute.forward(*inputs, _program(center, eps), True)
    per_row = (*x.shape[: x.dim() - len(shape)], *(1 for _ in shape))
    statistics = [t.view(per_row) for t in (mu, rstd) if t is not None]
    return (y.view(x.shape), *statistics)


def _fused_rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    outputs = _backward(dy, x, shape, None, rstd, weight, None, (*mask, False))
    return outputs if outputs is NotImplemented else outputs[:2]


def _backward(
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    """The gradients of x, weight and bias, None where ``mask`` is false."""
    statistics = [rstd] if mean is None else [mean, rstd]
    if (
        not _is_computed(x, shape, weight, bias)
        or (dy.shape, dy.dtype, dy.device) != (x.shape, x.dtype, x.device)
        or any(t.dtype != compute_dtype(x) or t.device != x.device for t in statistics)
    ):
        return NotImplemented
    rows = _rows(x, shape)
    center = mean is not None
    inputs = BackwardInputs(
        dy=_rows(dy, shape),
        dh=None,
        h=rows,
        pre_bias=None,
        weight=_vector(weight),
        bias=_vector(bias),
        scale=None,
        shift=None,
        residual_gate=None,
        gate=None,
        x=None,
        mu=None if mean is None else mean.reshape(rows.shape[:-1]),
        rstd=rstd.reshape(rows.shape[:-1]),
    )
    wanted = dict.fromkeys(Inputs._fields, False)
    wanted["x"] = mask[0]
    wanted["weight"] = mask[1] and weight is not None
    wanted["bias"] = mask[2] and bias is not None
    program = _program(center, 0.0).for_backward(x.dtype)
    gradients = execute.backward(inputs, program, False, tuple(wanted.values()))
    return (
        None if gradients.x is None else gradients.x.reshape(x.shape),
        None if gradients.weight is None or weight is None else gradients.weight.view(weight.shape),
        None if gradients.bias is None or bias is None else gradients.bias.view(bias.shape),
    )


_KERNELS: dict[str, Callable[..., Any]] = {
    "_fused_rms_norm": _fused_rms_norm,
    "_fused_rms_norm_backward": _fused_rms_norm_backward,
    "native_layer_norm": functools.partial(_forward, center=True),
    "native_layer_norm_backward": _backward,
}


def _is_computed(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> bool:
    """Whether rownorm computes the norm of x. PyTorch's kernel raises the error where neither of them does."""
    return (
        x.dtype in DTYPES
        and x.layout is torch.strided
        and x.numel() > 0
        and 0 < len(shape) <= x.dim()
        and tuple(x.shape[-len(shape) :]) == tuple(shape)
        and all(
            t is None
            or (
                tuple(t.shape) == tuple(shape)
                and (t.dtype, t.device, t.layout) == (x.dtype, x.device, x.layout)
            )
            for t in (weight, bias)
        )
    )


def _rows(t: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor with the dimensions that are reduced as one, and contiguous, as PyTorch's kernels make it."""
    t = t.contiguous()
    return t if len(shape) == 1 else t.flatten(-len(shape))


def _vector(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.reshape(-1)


def _program(center: bool, eps: float) -> Program:
    return Program(center, eps, batch_invariant=state.is_active and is_on())
