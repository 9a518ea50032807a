"""Liger-Kernel: Triton kernels for training, one power-of-two block per row."""

from __future__ import annotations

from typing import Any

from ..data.case import Case
from . import Call, Refusal, by_autograd, provider
from .data import Tensors

WIDEST = 65536  # its calculate_settings rejects a larger block


@provider(
    "liger",
    about="Liger-Kernel, Triton kernels for training",
    operations=("layer_norm", "rms_norm", "add_rms_norm"),
    options=("no_weight", "modulation"),
    package="liger-kernel",
    needs=("liger_kernel",),
    needs_gpu=True,
)
def liger(case: Case, t: Tensors) -> Call:
    from liger_kernel.transformers import functional  # type: ignore[import-not-found,unused-ignore]

    if case.cols > WIDEST:
        raise Refusal(f"liger takes rows of up to {WIDEST} columns")
    # in_place would overwrite dy with dx. "gemma" computes in fp32 until the store, as the case requires.
    options = {"casting_mode": "gemma", "in_place": False}
    if case.sample_rows:
        return _modulated(case, t, options)
    if not case.weight:
        raise Refusal("liger is measured without a weight only with scale and shift")
    forwards: dict[str, Call] = {
        "layer_norm": lambda: functional.liger_layer_norm(t.x, t.weight, t.bias, case.eps),
        "rms_norm": lambda: functional.liger_rms_norm(t.x, t.weight, case.eps, **options),
        "add_rms_norm": lambda: functional.liger_fused_add_rms_norm(
            t.x, t.residual, t.weight, case.eps, **options
        ),
    }
    return by_autograd(case, t, forwards[case.operation])


def _modulated(case: Case, t: Tensors, options: dict[str, Any]) -> Call:
    """RMSNorm with scale and shift, which it multiplies by 1 + scale."""
    from liger_kernel.transformers import functional

    if case.operation != "rms_norm":
        raise Refusal("liger has scale and shift with rms_norm only")
    if (norm := getattr(functional, "liger_modulated_rms_norm", None)) is None:
        raise Refusal("this version of liger has no modulated RMSNorm")
    return by_autograd(case, t, lambda: norm(t.x, t.weight, t.scale, t.shift, case.eps, **options))
