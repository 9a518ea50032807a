"""A plugin for SGLang, which its processes load where the variable names it:

SGLANG_PLUGINS=rownorm python -m sglang.launch_server ...

The entry point ``rownorm`` of the group ``sglang.srt.plugins`` is ``register``. Nothing of SGLang is imported before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..ops import add_rms_norm, rms_norm

log = logging.getLogger(__name__)
TARGET = "sglang.srt.layers.layernorm.RMSNorm.forward_cuda"

Result = Tensor | tuple[Tensor, Tensor]


def register() -> None:
    """Hook ``RMSNorm.forward_cuda``. SGLang applies the hook when it has loaded all plugins.

    Without ``SGLANG_PLUGINS`` SGLang loads all plugins that are installed; this one does nothing then.
    """
    from sglang.srt.environ import envs
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    named = [name.strip() for name in (envs.SGLANG_PLUGINS.get() or "").split(",")]
    if "rownorm" not in named:
        log.info("rownorm computes no norms: SGLANG_PLUGINS does not name it")
        return
    # AROUND rather than REPLACE: the original computes what rownorm does not.
    HookRegistry.register(TARGET, forward_cuda, HookType.AROUND)


def forward_cuda(
    original: Callable[..., Result],
    self: Any,
    x: Tensor,
    residual: Tensor | None = None,
    post_residual_addition: Tensor | None = None,
    quant_linear: Any = None,
) -> Result:
    """The norm of ``sglang.srt.layers.layernorm.RMSNorm``; the results are new tensors."""
    from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled

    tensors = [t for t in (residual, post_residual_addition, self.weight) if t is not None]
    if (
        x.numel() == 0
        or quant_linear is not None
        or self._quant_linear is not None
        or self.variance_size_override is not None
        or self.override_orig_dtype is not None
        or any(t.dtype != x.dtype for t in tensors)
        or is_batch_invariant_mode_enabled()
    ):
        return original(self, x, residual, post_residual_addition, quant_linear)
    rounding: Any = "llama" if self.cast_x_before_out_mul else "once"
    weight, eps = self.weight.data, self.variance_epsilon
    if residual is None:
        return rms_norm(x, weight, eps=eps, rounding=rounding)
    if post_residual_addition is not None:
        residual = residual + post_residual_addition
    return add_rms_norm(x, residual, weight, eps=eps, rounding=rounding)
