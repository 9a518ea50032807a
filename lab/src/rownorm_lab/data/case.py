"""A ``Case`` is one operation on one shape, with the bytes it must move and the operations it must compute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    import torch

Operation = Literal["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"]
Direction = Literal["forward", "backward", "both"]
Dtype = Literal["fp16", "bf16", "fp32"]
Activation = Literal["relu", "silu", "gelu", "gelu_tanh"]  # program.Activation, without torch
GateActivation = Literal["silu", "sigmoid"]

OPERATIONS: tuple[Operation, ...] = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "both")
DTYPES: tuple[Dtype, ...] = ("fp16", "bf16", "fp32")
ACTIVATIONS: tuple[Activation, ...] = ("relu", "silu", "gelu", "gelu_tanh")
GATE_ACTIVATIONS: tuple[GateActivation, ...] = ("silu", "sigmoid")
DATA_SETS = {  # kinds of input values
    "normal": "standard normal",
    "offset": "a mean up to 10000 times the spread, as far as the dtype can represent it",
    "near_eps": "tiny values, whose variance is about eps",
    "outliers": "one value in twenty is a thousand times larger",
    "constant": "all values of a row are equal",
}
FORMS = {  # of a norm, in ``rownorm check``
    "plain": "no scale, shift or gate",
    "modulated": "scale and shift of two samples, or of each row; no weight",
    "residual_gate": "the same, with a gate of the residual add; add_ operations only",
    "gate": "a silu gate of the result",
    "gate_first": "a silu gate of the row",
}
ITEMSIZE: dict[Dtype, int] = {"fp16": 2, "bf16": 2, "fp32": 4}


def torch_dtype(name: Dtype) -> torch.dtype:
    """The torch dtype of that name. torch is imported inside, so that cases can be listed without it."""
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[name]


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation on ``rows`` rows of ``cols`` columns. ``both`` is a training step: forward, then backward.

    ``bias=None`` is the default of the operation: LayerNorm has a bias if it has a weight, RMSNorm has none.
    ``sample_rows``: the rows that share a scale and a shift, as the tokens of an image do, and y is multiplied by
    1 + scale before the shift is added; 0 for a norm without them. ``residual_gate``: they share the factor of x in a
    residual add, too. ``gate_activation``: there is a gate, a factor for each element after this activation: of y, or
    with ``gate_first`` of the row before the norm.
    ``name`` gives the origin of the shape ("Llama-3-8B hidden"); it does not affect the measurement. ``setting`` is
    where the operation is measured instead of alone: "autocast bf16", "2 threads"; only ``rownorm bars`` measures such
    cases.
    """

    operation: Operation
    direction: Direction = "forward"
    rows: int
    cols: int
    dtype: Dtype = "bf16"
    residual_dtype: Dtype | None = None
    weight: bool = True
    bias: bool | None = None
    pre_bias: bool = False
    activation: Activation | None = None
    sample_rows: int = 0
    residual_gate: bool = False
    gate_activation: GateActivation | None = None
    gate_first: bool = False
    returns_h: bool = True  # False: an add_ operation whose sum with the residual is not an output
    eps: float = 1e-5
    name: str = ""
    setting: str = ""

    def __post_init__(self) -> None:
        _one_of("operation", self.operation, OPERATIONS)
        _one_of("direction", self.direction, DIRECTIONS)
        _one_of("dtype", self.dtype, DTYPES)
        for field, size in (("rows", self.rows), ("cols", self.cols)):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"case: {field} must be a positive integer; got {size!r}")
        if self.residual_dtype is not None:
            _one_of("residual_dtype", self.residual_dtype, DTYPES)
            if not self.adds:
                raise ValueError(
                    f"case: residual_dtype is for add_layer_norm and add_rms_norm; {self.operation} has no residual"
                )
        if self.activation is not None:
            _one_of("activation", self.activation, ACTIVATIONS)
        samples = self.sample_rows
        if not isinstance(samples, int) or samples < 0 or (samples and self.rows % samples):
            raise ValueError(
                f"case: sample_rows must divide the rows, which are {self.rows}; got {samples!r}"
            )
        if self.residual_gate and not (samples and self.adds):
            raise ValueError(
                "case: residual_gate is for add_layer_norm and add_rms_norm with sample_rows; "
                f"got {self.operation} with {samples}"
            )
        if self.gate_activation is not None:
            _one_of("gate_activation", self.gate_activation, GATE_ACTIVATIONS)
        elif self.gate_first:
            raise ValueError("case: gate_first is for a case with a gate_activation")
        if not self.returns_h and not (self.adds and self.direction == "forward"):
            raise ValueError("case: returns_h=False is for the forward pass of add_ operations")
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise ValueError(f"case: eps must be positive and finite; got {self.eps!r}")

    @property
    def centers(self) -> bool:
        """Whether the mean is subtracted (LayerNorm)."""
        return self.operation in ("layer_norm", "add_layer_norm")

    @property
    def adds(self) -> bool:
        """Whether there is a residual stream: a second input and a second output."""
        return self.operation.startswith("add_")

    @property
    def has_bias(self) -> bool:
        return self.centers and self.weight if self.bias is None else self.bias

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch_dtype(self.dtype)

    @property
    def torch_residual_dtype(self) -> torch.dtype:
        return torch_dtype(self.residual_dtype or self.dtype)

    @property
    def variant(self) -> str:
        """The operation with its options: ``add_rms_norm (fp32 residual, silu)``."""
        options = []
        if self.residual_dtype not in (None, self.dtype):
            options.append(f"{self.residual_dtype} residual")
        if not self.weight:
            options.append("no weight")
        if self.bias is not None and self.bias != (self.centers and self.weight):
            options.append("bias" if self.bias else "no bias")
        if self.pre_bias:
            options.append("pre_bias")
        if self.activation:
            options.append(self.activation)
        if self.sample_rows:
            options.append(f"scale and shift of {self.sample_rows} rows")
        if self.residual_gate:
            options.append("residual_gate")
        if self.gate_activation:
            options.append(f"{self.gate_activation} gate{' first' if self.gate_first else ''}")
        if not self.returns_h:
            options.append("no h")
        if self.setting:
            options.append(self.setting)
        return f"{self.operation} ({', '.join(options)})" if options else self.operation

    @property
    def kind(self) -> str:
        """Everything except the shape: ``rms_norm backward bf16``."""
        return f"{self.variant} {self.direction} {self.dtype}"

    @property
    def title(self) -> str:
        """The case in one line, for display."""
        name = f"  ({self.name})" if self.name else ""
        return f"{self.kind} {self.rows}x{self.cols}{name}"

    @property
    def key(self) -> str:
        """The identity of the measurement: two cases with the same key are measured once."""
        return f"{self.kind} {self.rows}x{self.cols} eps={self.eps:g}"

    @property
    def compulsory_bytes(self) -> int:
        """The bytes that any implementation must move: inputs read once, outputs written once, parameters once.

        forward: x [, residual] in, y [, h] out. backward: dy and h [, dh] in, dx [, dresidual] out; dx and dresidual
        are one tensor if they have the same dtype and no residual_gate, which needs x, too. A gate is read, and its
        gradient is written. ``both`` is the sum. The statistics of a row, 4 to 8 bytes, are
        left out.
        """
        element = ITEMSIZE[self.dtype]
        stream = ITEMSIZE[self.residual_dtype or self.dtype] if self.adds else 0
        samples = self.rows // self.sample_rows if self.sample_rows else 0
        gates = 1 if self.gate_activation else 0
        # In rows of parameters: a scale, a shift and perhaps a residual_gate for each sample.
        parameters = self.weight + self.has_bias + self.pre_bias
        parameters += (2 + self.residual_gate) * samples
        forward = self.rows * ((2 + gates) * element + (1 + self.returns_h) * stream)
        forward += parameters * element
        # Backward reads weight and scale, pre_bias if no h was stored, and what is added after the norm only where it
        # changes a gradient: with an activation or a gate after it, and the bias with a scale too. It writes the
        # gradient of each parameter.
        after_norm = bool(self.activation) or (gates > 0 and not self.gate_first)
        needed = self.weight + (1 + self.residual_gate) * samples
        needed += self.pre_bias and (self.residual_gate or not self.adds)
        needed += self.has_bias and (after_norm or samples > 0)
        needed += samples if after_norm else 0
        has_own = self.residual_gate or self.residual_dtype not in (None, self.dtype)
        dresidual = stream if has_own else 0
        moved = 2 * element + 2 * stream + dresidual if self.adds else 3 * element
        moved += (self.residual_gate + 2 * gates) * element
        backward = self.rows * moved + (needed + parameters) * element
        return self.cols * self._of_direction(forward, backward)

    @property
    def flops(self) -> int:
        """Floating-point operations of the formulas. A multiply-add counts as two; activations are left out.

        forward: square and sum 2, scale by rstd 1, weight 1; LayerNorm adds the sum for the mean and a subtraction, 2.
        backward: x_hat 1, dy * weight 1, its product with x_hat summed 2, dx 3, dweight 2; LayerNorm adds 3.
        Scale and shift: 3 forward (1 + scale is one of them); 1 + scale, its product with dy, dscale 2 and dshift 1
        backward. A gate: its product forward; that with dy and the two of its gradient backward. A residual_gate: its
        product forward; dx and the sum of its gradient backward.
        """
        forward = (5 if self.centers else 3) + self.weight + self.has_bias + self.pre_bias
        backward = (9 if self.centers else 6) + 3 * self.weight + self.has_bias
        forward += self.adds + (3 if self.sample_rows else 0)
        backward += self.adds + (5 if self.sample_rows else 0)
        gates = self.residual_gate + (self.gate_activation is not None)
        forward, backward = forward + gates, backward + 3 * gates
        if self.pre_bias:
            # Its gradient is summed; without a stored h it is also added.
            backward += 1 if self.adds else 2
        return self.rows * self.cols * self._of_direction(forward, backward)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: flops per compulsory byte."""
        return self.flops / self.compulsory_bytes

    def _of_direction(self, forward: int, backward: int) -> int:
        return {"forward": forward, "backward": backward, "both": forward + backward}[
            self.direction
        ]


def form_options(form: str, rows: int) -> dict[str, Any]:
    """The fields of a case with this many rows that make it one of FORMS."""
    samples = {"weight": False, "sample_rows": rows // 2 if rows % 2 == 0 else 1}
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "modulated": samples,
        "residual_gate": samples | {"residual_gate": True},
        "gate": {"gate_activation": "silu"},
        "gate_first": {"gate_activation": "silu", "gate_first": True},
    }
    return options[form]


def _one_of(field: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"case: {field} must be one of {', '.join(known)}; got {value!r}")
