"""QuACK: CuTe DSL kernels for NVIDIA Hopper and newer."""

from __future__ import annotations

from torch import Tensor

from ..data.case import Case
from . import Call, by_autograd, provider
from .data import Tensors


@provider(
    "quack",
    about="QuACK, CuTe DSL kernels for Hopper and newer",
    operations=("layer_norm", "rms_norm", "add_rms_norm"),
    options=("bias", "no_bias", "mixed_residual"),
    package="quack-kernels",
    needs=("quack",),
    needs_gpu=True,
)
def quack(case: Case, t: Tensors) -> Call:
    if case.operation == "layer_norm":
        return _layer_norm(case, t)
    from quack.rmsnorm import rmsnorm  # type: ignore[import-not-found,unused-ignore]

    options = {"bias": t.bias, "residual": t.residual, "eps": case.eps, "prenorm": case.adds}
    return by_autograd(case, t, lambda: rmsnorm(t.x, t.weight, **options))


def _layer_norm(case: Case, t: Tensors) -> Call:
    """QuACK's LayerNorm is two functions without autograd. Forward requires fp32 parameters, converted here."""
    from quack.rmsnorm import layernorm_bwd as backward
    from quack.rmsnorm import layernorm_fwd as forward

    x, weight, dy = t.x.detach(), t.weight.detach(), t.dy
    wide_weight = weight.float()
    wide_bias = None if t.bias is None else t.bias.detach().float()

    def gradients(rstd: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
        found = backward(x, weight, dy, rstd, mean, has_bias=t.bias is not None)
        return tuple(gradient for gradient in found if gradient is not None)

    if case.direction == "forward":
        return lambda: forward(x, wide_weight, wide_bias, case.eps)
    if case.direction == "backward":
        _, rstd, mean = forward(x, wide_weight, wide_bias, case.eps, True, True)
        return lambda: gradients(rstd, mean)

    def step() -> tuple[Tensor, ...]:
        y, rstd, mean = forward(x, wide_weight, wide_bias, case.eps, True, True)
        return (y, *gradients(rstd, mean))

    return step
