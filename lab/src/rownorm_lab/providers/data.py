"""The tensors of a case: inputs, parameters and incoming gradients. Every provider gets the same values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rownorm.inside import INPUTS, OPTIONS, Inputs, Program

from ..data.case import DATA_SETS, Case


class Tensors(NamedTuple):
    """The arguments of one call; None for an absent one.

    x, residual, gate, dy, dh: (rows, cols), or (samples, sample_rows, cols) beside scale, shift and residual_gate,
    which are (samples, 1, cols). pre_bias, weight, bias: (cols,).
    """

    x: Tensor
    residual: Tensor | None = None
    pre_bias: Tensor | None = None
    # A case without a weight goes only to those who offer that, so the others need not ask.
    weight: Tensor = None  # type: ignore[assignment]
    bias: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    residual_gate: Tensor | None = None
    gate: Tensor | None = None
    dy: Tensor | None = None
    dh: Tensor | None = None

    @property
    def inputs(self) -> Inputs:
        """The operation's inputs, in order; None for those that no case has, such as gates."""
        return Inputs(**{name: getattr(self, name, None) for name in INPUTS})  # type: ignore[arg-type]

    @property
    def leaves(self) -> list[Tensor]:
        """The inputs of the operation; each gets a gradient."""
        return [t for t in self.inputs if t is not None]

    @property
    def cotangents(self) -> list[Tensor]:
        """The incoming gradients: dy, and dh if there is a residual."""
        return [t for t in (self.dy, self.dh) if t is not None]

    def copy(self) -> Tensors:
        """The same values in new memory."""
        copies = (
            None if t is None else t.detach().clone().requires_grad_(t.requires_grad) for t in self
        )
        return Tensors(*copies)  # type: ignore[arg-type]


def program_of(case: Case) -> Program:
    """The row program of a case: of all options, those that a case has a field for."""
    options = {name: getattr(case, name) for name in OPTIONS if name in Case.__struct_fields__}
    if case.sample_rows:
        options["scale_shift"] = 1.0
    return Program(case.centers, **options)


def output_names(case: Case) -> tuple[str, ...]:
    """The names of what a call returns, in order: outputs, gradients, or (``both``) outputs and gradients."""
    forward = ("y", "h") if case.adds and case.returns_h else ("y",)
    backward = tuple(f"d{name}" for name in input_names(case))
    return {"forward": forward, "backward": backward, "both": forward + backward}[case.direction]


def input_names(case: Case) -> tuple[str, ...]:
    """The names of the case's inputs, in the order of ``Inputs``."""
    present = {
        "x": True,
        "residual": case.adds,
        "pre_bias": case.pre_bias,
        "weight": case.weight,
        "bias": case.has_bias,
        "scale": case.sample_rows > 0,
        "shift": case.sample_rows > 0,
        "residual_gate": case.residual_gate,
        "gate": case.gate_activation is not None,
    }
    return tuple(name for name in INPUTS if present.get(name, False))


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

    def parameter(around: float, *samples: int) -> Tensor:
        values = torch.randn(*samples, case.cols, generator=generator, device=device)
        return (around + 0.3 * values).to(dtype).requires_grad_(differentiates)

    parameters: dict[str, Tensor] = {}
    for name in ("weight", "bias", "pre_bias"):
        if name in input_names(case):
            parameters[name] = parameter(1.0 if name == "weight" else 0.0)
    for name in input_names(case):
        if INPUTS[name].extent == "samples":
            parameters[name] = parameter(0.0, case.rows // case.sample_rows, 1)
    # Constant rows must stay so in h.
    residual_data = "constant" if data == "constant" else "normal"

    def one() -> Tensors:
        made = {"x": rows(data, dtype)}
        if case.adds:
            made["residual"] = rows(residual_data, stream)
        if case.gate_activation:
            made["gate"] = rows("normal", dtype)
        for one in made.values():
            one.requires_grad_(differentiates)
        if differentiates:
            made["dy"] = rows("normal", dtype)
        if differentiates and case.adds:
            made["dh"] = rows("normal", stream)
        return Tensors(**parameters, **made)

    return [one() for _ in range(sets)]


def _rows(data: str, case: Case, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    shape: tuple[int, ...] = (case.rows, case.cols)
    if case.sample_rows:
        shape = (case.rows // case.sample_rows, case.sample_rows, case.cols)
    device = generator.device
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
            rows = 10 * normal[..., :1].expand(shape)
        case _:
            raise ValueError(f"data must be one of {', '.join(DATA_SETS)}; got {data!r}")
    return rows.to(dtype).contiguous()
