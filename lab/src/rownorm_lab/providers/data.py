"""The tensors of a case: inputs, parameters and incoming gradients. Every provider gets the same values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rownorm.inside import OPTIONS, Program

from ..data.case import DATA_SETS, Case


class Tensors(NamedTuple):
    """The arguments of one call. The first five are the operation's inputs, in order; None for an absent one.

    x, residual, dy, dh: (rows, cols); pre_bias, weight, bias: (cols,).
    """

    x: Tensor
    residual: Tensor | None
    pre_bias: Tensor | None
    weight: Tensor
    bias: Tensor | None
    dy: Tensor | None
    dh: Tensor | None

    @property
    def leaves(self) -> list[Tensor]:
        """The inputs of the operation; each gets a gradient."""
        return [t for t in self[:5] if t is not None]

    @property
    def cotangents(self) -> list[Tensor]:
        """The incoming gradients: dy, and dh if there is a residual."""
        return [t for t in self[5:] if t is not None]

    def copy(self) -> Tensors:
        """The same values in new memory."""

        def of(t: Tensor) -> Tensor:
            return t.detach().clone().requires_grad_(t.requires_grad)

        x, weight = of(self.x), of(self.weight)
        rest = (None if t is None else of(t) for t in (*self[1:3], *self[4:]))
        residual, pre_bias, bias, dy, dh = rest
        return Tensors(x, residual, pre_bias, weight, bias, dy, dh)


def program_of(case: Case) -> Program:
    """The row program of a case: of all options, those that a case has a field for."""
    options = {name: getattr(case, name) for name in OPTIONS if name in Case.__struct_fields__}
    return Program(case.centers, **options)


def output_names(case: Case) -> tuple[str, ...]:
    """The names of what a call returns, in order: outputs, gradients, or (``both``) outputs and gradients."""
    forward = ("y", "h") if case.adds and case.returns_h else ("y",)
    present = {"residual": case.adds, "pre_bias": case.pre_bias, "bias": case.has_bias}
    inputs = ("x", "residual", "pre_bias", "weight", "bias")
    backward = tuple(f"d{name}" for name in inputs if present.get(name, True))
    return {"forward": forward, "backward": backward, "both": forward + backward}[case.direction]


def rotation(
    case: Case, sets: int, device: str | torch.device, *, data: str = "normal", seed: int = 0
) -> list[Tensors]:
    """Independent sets of tensors for one case. All sets share the parameters, as the calls of a model do."""
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
    # Constant rows must stay so in h.
    residual_data = "constant" if data == "constant" else "normal"

    def one() -> Tensors:
        x = rows(data, dtype).requires_grad_(differentiates)
        residual = rows(residual_data, stream).requires_grad_(differentiates) if case.adds else None
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
        case "offset":  # the spread is then at least about eight steps of the dtype
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
