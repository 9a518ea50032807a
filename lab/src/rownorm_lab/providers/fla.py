"""flash-linear-attention: the Triton norms of flash-attention, autotuned."""

from __future__ import annotations

from ..data.case import Case
from . import Call, Refusal, by_autograd, provider
from .data import Tensors

WIDEST_BYTES = 65536  # of a row of x; in backward, of a row of the residual stream


@provider(
    "fla",
    about="flash-linear-attention, autotuned Triton kernels",
    options=("bias", "no_bias", "mixed_residual", "gate", "gate_first"),
    package="fla-core",
    needs=("fla", "einops"),
    install="pip install fla-core einops",
    needs_gpu=True,
)
def fla(case: Case, t: Tensors) -> Call:
    stored = t.x if t.residual is None or case.direction == "forward" else t.residual
    widest = WIDEST_BYTES // stored.element_size()
    if case.cols > widest:
        raise Refusal(f"fla takes rows of up to {widest} columns in this dtype")
    if case.gate_activation is not None:
        return _gated(case, t)
    from fla.modules.layernorm import (  # type: ignore[import-not-found,unused-ignore]
        layer_norm,
        rms_norm,
    )

    norm = layer_norm if case.centers else rms_norm
    options = {"residual": t.residual, "eps": case.eps, "prenorm": case.adds}
    return by_autograd(case, t, lambda: norm(t.x, t.weight, t.bias, **options))


def _gated(case: Case, t: Tensors) -> Call:
    """A gate of the result, or of the row by Mamba2's kernels. A residual add would keep h of another dtype."""
    if case.adds:
        raise Refusal("fla is measured with a gate or with a residual add, not with both")
    if case.gate_first:
        return _gated_first(case, t)
    from fla.modules.fused_norm_gate import (  # type: ignore[import-not-found,unused-ignore]
        layer_norm_gated,
        rms_norm_gated,
    )

    norm = layer_norm_gated if case.centers else rms_norm_gated
    options = {"activation": case.gate_activation, "eps": case.eps}
    return by_autograd(case, t, lambda: norm(t.x, t.gate, t.weight, t.bias, **options))


def _gated_first(case: Case, t: Tensors) -> Call:
    if case.gate_activation != "silu":
        raise Refusal("fla has a silu gate before the norm, and no other")
    from fla.modules.layernorm_gated import (  # type: ignore[import-not-found,unused-ignore]
        layernorm_fn,
        rmsnorm_fn,
    )

    norm = layernorm_fn if case.centers else rmsnorm_fn
    options = {"z": t.gate, "eps": case.eps, "norm_before_gate": False}
    return by_autograd(case, t, lambda: norm(t.x, t.weight, t.bias, **options))
