"""A plugin for vLLM, which its workers load where the variable names it:

VLLM_PLUGINS=rownorm vllm serve ...

The entry point ``rownorm`` of the group ``vllm.general_plugins`` is ``register``. Nothing of vLLM is imported before.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from ..ops import add_rms_norm, rms_norm

log = logging.getLogger(__name__)


def register() -> None:
    """Every ``RMSNorm`` that vLLM makes from now on is a subclass of it, computed by rownorm.

    Without ``VLLM_PLUGINS`` vLLM loads all plugins that are installed; this one does nothing then. vLLM may call it
    several times.
    """
    from vllm import envs
    from vllm.model_executor import custom_op

    if "rownorm" not in (envs.VLLM_PLUGINS or ()):
        log.info("rownorm computes no norms: VLLM_PLUGINS does not name it")
        return
    taken = custom_op.op_registry_oot.get("RMSNorm")
    if taken is None:
        custom_op.CustomOp.register_oot(_norm_class(), name="RMSNorm")
        # register_oot has set the name to that of the class. The name in custom_ops is the registered one.
        taken = custom_op.op_registry_oot["RMSNorm"]
        taken.name = "rms_norm"
    elif taken.__name__ != "RownormRMSNorm":
        log.warning("rownorm computes no norms: %s is registered for RMSNorm", taken)


def _norm_class() -> type:
    from vllm import envs
    from vllm.model_executor.layers.layernorm import RMSNorm

    class RownormRMSNorm(RMSNorm):  # type: ignore[misc]
        """vLLM's RMSNorm, with its arguments and parameters; on a GPU it is computed by rownorm."""

        def forward_cuda(
            self, x: Tensor, residual: Tensor | None = None
        ) -> Tensor | tuple[Tensor, Tensor]:
            weight = self.weight.data if self.has_weight else None
            if (
                envs.VLLM_BATCH_INVARIANT
                or self.variance_size_override is not None
                or (residual is not None and residual.dtype != x.dtype)
                or (weight is not None and weight.dtype not in (x.dtype, torch.float32))
            ):
                return super().forward_cuda(x, residual)
            options: dict[str, Any] = {
                "eps": self.variance_epsilon,
                # vLLM rounds the row to the dtype of the weight before the product.
                "rounding": "llama" if weight is not None and weight.dtype == x.dtype else "once",
            }
            if residual is None:
                return rms_norm(x, weight, **options)
            return add_rms_norm(x, residual, weight, **options)

    return RownormRMSNorm
