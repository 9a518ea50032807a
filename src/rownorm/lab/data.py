"""The tensors of a case: inputs, parameters and incoming gradients, easy or hard, the same for every provider."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .cases import Case

DATA_SETS = {
    "normal": "standard normal",
    "offset": "a mean far larger than the spread: up to 10000 times, as far as the dtype can hold it",
    "near_eps": "tiny values, whose variance is about eps",
    "outliers": "one value in twenty is a thousand times larger",
    "constant": "all values of a row are equal",
}


class Tensors(NamedTuple):
    """What one call is given. The first five are the inputs of the operation, in its order; None where it has none."""

    x: Tensor
    residual: Tensor | None
    pre_bias: Tensor | None
    weight: Tensor
    bias: Tensor | None
    dy: Tensor | None
    dh: Tensor | None

    @property
    def leaves(self) -> list[Tensor]:
        """The inputs that get a gradient, all of them."""
        return [t for t in self[:5] if t is not None]

    @property
    def cotangents(self) -> list[Tensor]:
        """The gradients that come in: of y, and of h where there is one."""
        return [t for t in self[5:] if t is not None]

    def copy(self) -> Tensors:
        """The same values in other memory."""

        def of(t: Tensor) -> Tensor:
            return t.detach().clone().requires_grad_(t.requires_grad)

        x, weight = of(self.x), of(self.weight)
        rest = (None if t is None else of(t) for t in (*self[1:3], *self[4:]))
        residual, pre_bias, bias, dy, dh = rest
        return Tensors(x, residual, pre_bias, weight, bias, dy, dh)


def output_names(case: Case) -> tuple[str, ...]:
    """What a call returns, in order: outputs for forward, gradients for backward, one after the other for both."""
    forward = ("y", "h") if case.adds else ("y",)
    present = {"residual": case.adds, "pre_bias": case.pre_bias, "bias": case.has_bias}
    inputs = ("x", "residual", "pre_bias", "weight", "bias")
    backward = tuple(f"d{name}" for name in inputs if present.get(name, True))
    return {"forward": forward, "backward": backward, "both": forward + backward}[case.direction]


def rotation(
    case: Case, sets: int, device: str | torch.device, *, data: str = "normal", seed: int = 0
) -> list[Tensors]:
    """Independent sets of tensors for one case. The parameters are shared, as a model's calls share them."""
    device = torch.device(device)
    generator = torch.Generator(device).manual_seed(seed)
    differentiates = case.direction != "forward"
    dtype, stream = case.torch_dtype, case.torch_residual_dtype

    def rows(kind: str, of: torch.dtype) -> Tensor:
        return _rows(kind, case, of, generator)

    def parameter(around: float) -> Tensor:
        values = torch.randn(case.cols, generator=generator, device=device)
        return (around + 0.3 * values).to(dtype).requires_grad_(differentiates)

    weight = parameter(1.0)
    bias = parameter(0.0) if case.has_bias else None
    pre_bias = parameter(0.0) if case.pre_bias else None
    beside = "constant" if data == "constant" else "normal"  # h is to be as hard as x

    def one() -> Tensors:
        x = rows(data, dtype).requires_grad_(differentiates)
        residual = rows(beside, stream).requires_grad_(differentiates) if case.adds else None
        dy = rows("normal", dtype) if differentiates else None
        dh = rows("normal", stream) if differentiates and case.adds else None
        return Tensors(x, residual, pre_bias, weight, bias, dy, dh)

    return [one() for _ in range(sets)]


def _rows(data: str, case: Case, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    shape, device = (case.rows, case.cols), generator.device
    if data == "normal":
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)
    normal = torch.randn(shape, generator=generator, device=device)
    match data:
        case "offset":  # the spread is then about eight of the dtype's steps, or more
            rows = normal + min(1e4, 0.25 / torch.finfo(dtype).eps)
        case "near_eps":
            rows = normal * case.eps**0.5
        case "outliers":
            chosen = torch.rand(shape, generator=generator, device=device) < 0.05
            rows = torch.where(chosen, 1e3 * normal, normal)
        case "constant":
            rows = 10 * normal[:, :1].expand(shape)
        case _:
            raise ValueError(f"data must be one of {', '.join(DATA_SETS)}; got {data!r}")
    return rows.to(dtype).contiguous()
