"""mamba-ssm: the gated norms of Mamba2, Triton kernels with the gate before or after the norm."""

from __future__ import annotations

from ..data.case import Case
from . import Call, Refusal, by_autograd, provider
from .data import Tensors


@provider(
    "mamba",
    about="mamba-ssm, the gated norms of Mamba2, Triton kernels",
    operations=("layer_norm", "rms_norm"),
    options=("bias", "no_bias", "gate", "gate_first"),
    package="mamba-ssm",
    needs=("mamba_ssm",),
    install="pip install mamba-ssm --no-build-isolation",
    needs_gpu=True,
)
def mamba(case: Case, t: Tensors) -> Call:
    if case.gate_activation != "silu":
        raise Refusal("mamba is measured with a silu gate, the only one that it has")
    from mamba_ssm.ops.triton.layernorm_gated import (  # type: ignore[import-not-found,unused-ignore]
        layernorm_fn,
        rmsnorm_fn,
    )

    norm = layernorm_fn if case.centers else rmsnorm_fn
    options = {"z": t.gate, "eps": case.eps, "norm_before_gate": not case.gate_first}
    return by_autograd(case, t, lambda: norm(t.x, t.weight, t.bias, **options))
