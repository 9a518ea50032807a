"""FlashInfer: CUDA kernels for inference."""

from __future__ import annotations

from torch import Tensor

from ..data.case import Case
from . import Call, Refusal, provider
from .data import Tensors


@provider(
    "flashinfer",
    about="FlashInfer, CUDA kernels for inference; its residual add works in place",
    operations=("layer_norm", "rms_norm", "add_rms_norm"),
    directions=("forward",),
    dtypes=("fp16", "bf16"),
    package="flashinfer-python",
    needs=("flashinfer",),
    needs_gpu=True,
)
def flashinfer(case: Case, t: Tensors) -> Call:
    from flashinfer import norm  # type: ignore[import-not-found,unused-ignore]

    if case.operation == "rms_norm":
        return lambda: norm.rmsnorm(t.x, t.weight, case.eps)
    if case.operation == "layer_norm":
        if case.dtype != "bf16" or t.bias is None:
            raise Refusal("flashinfer's layernorm takes bf16 rows only")
        weight, bias = t.weight.float(), t.bias.float()  # it requires fp32 parameters
        return lambda: norm.layernorm(t.x, weight, bias, case.eps)
    assert t.residual is not None
    # It overwrites x with y and the residual with h, so it gets copies.
    x, residual = t.x.clone(), t.residual.clone()

    def add() -> tuple[Tensor, Tensor]:
        norm.fused_add_rmsnorm(x, residual, t.weight, case.eps)
        return x, residual

    return add
