"""Helion: norms written in its language, compiled to Triton with settings that it searches for itself."""

from __future__ import annotations

from torch import Tensor

from ..data.case import Case
from . import Call, provider
from .data import Tensors


@provider(
    "helion",
    about="kernels in Helion, tuned for each shape for minutes (HELION_AUTOTUNE_EFFORT: none, quick or full)",
    operations=("layer_norm", "rms_norm"),
    package="helion",
    needs=("helion",),
    needs_gpu=True,
    on_request=True,
)
def helion(case: Case, t: Tensors) -> Call:
    from .kernels import helion_norms as norms

    x, weight, dy = t.x.detach(), t.weight.detach(), t.dy
    parameters = (weight,) if t.bias is None else (weight, t.bias.detach())
    forward, backward = (
        (norms.layer_norm_forward, norms.layer_norm_backward)
        if case.centers
        else (norms.rms_norm_forward, norms.rms_norm_backward)
    )

    def outputs() -> tuple[Tensor, ...]:
        """y and the statistics."""
        return tuple(forward(x, *parameters, case.eps))

    if case.direction == "forward":
        return lambda: outputs()[0]
    if case.direction == "backward":
        _, *statistics = outputs()
        return lambda: tuple(backward(dy, x, weight, *statistics))

    def step() -> tuple[Tensor, ...]:
        y, *statistics = outputs()
        return (y, *backward(dy, x, weight, *statistics))

    return step
