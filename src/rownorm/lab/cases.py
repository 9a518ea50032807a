"""A ``Case`` is one operation on one shape: what every provider is asked to do, and what it must move to do it."""

from __future__ import annotations

from typing import Literal

import msgspec
import torch

Operation = Literal["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"]
Direction = Literal["forward", "backward", "both"]
Dtype = Literal["fp16", "bf16", "fp32"]

OPERATIONS: tuple[Operation, ...] = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "both")
DTYPES: dict[Dtype, torch.dtype] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation on ``rows`` rows of ``cols`` columns. ``both`` is a training step: forward, then backward.

    There is always a weight; ``bias`` is None where the operation decides: LayerNorm has one, RMSNorm has not.
    ``name`` says where the shape comes from ("Llama-3-8B hidden"); it is not part of what is measured.
    """

    operation: Operation
    direction: Direction = "forward"
    rows: int
    cols: int
    dtype: Dtype = "bf16"
    residual_dtype: Dtype | None = None
    bias: bool | None = None
    pre_bias: bool = False
    activation: str | None = None
    eps: float = 1e-5
    name: str = ""

    @property
    def centers(self) -> bool:
        """LayerNorm subtracts the mean."""
        return self.operation in ("layer_norm", "add_layer_norm")

    @property
    def adds(self) -> bool:
        """There is a residual stream: a second input and a second output."""
        return self.operation.startswith("add_")

    @property
    def has_bias(self) -> bool:
        return self.centers if self.bias is None else self.bias

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def torch_residual_dtype(self) -> torch.dtype:
        return DTYPES[self.residual_dtype or self.dtype]

    @property
    def variant(self) -> str:
        """The operation with its options, as people say it: ``add_rms_norm (fp32 residual, silu)``."""
        options = []
        if self.residual_dtype not in (None, self.dtype):
            options.append(f"{self.residual_dtype} residual")
        if self.bias is not None and self.bias != self.centers:
            options.append("bias" if self.bias else "no bias")
        if self.pre_bias:
            options.append("pre_bias")
        if self.activation:
            options.append(self.activation)
        return f"{self.operation} ({', '.join(options)})" if options else self.operation

    @property
    def key(self) -> str:
        """What is measured, in one line; two cases with the same key are the same measurement."""
        return (
            f"{self.variant} {self.direction} {self.dtype} {self.rows}x{self.cols} eps={self.eps:g}"
        )

    @property
    def compulsory_bytes(self) -> int:
        """What any implementation must move: inputs read once, outputs written once, parameters once.

        forward: x [, residual] in, y [, h] out. backward: dy and h [, dh] in, dx [, dresidual] out. ``both`` is their
        sum. Statistics of a row are left out: 4 to 8 bytes against thousands.
        """
        element = self.torch_dtype.itemsize
        stream = self.torch_residual_dtype.itemsize
        forward = 2 * element + (2 * stream if self.adds else 0)
        backward = 3 * element if not self.adds else 2 * element + 3 * stream
        parameters = (1 + self.has_bias + self.pre_bias) * self.cols * element
        per_element = {"forward": forward, "backward": backward, "both": forward + backward}
        passes = {"forward": 1, "backward": 2, "both": 3}[
            self.direction
        ]  # backward also writes their gradients
        return self.rows * self.cols * per_element[self.direction] + passes * parameters

    @property
    def flops(self) -> int:
        """Floating-point operations per the formulas, a multiply-add counting as two."""
        forward = (7 if self.centers else 4) + self.has_bias + self.pre_bias + self.adds
        backward = (13 if self.centers else 10) + self.pre_bias + self.adds
        per_element = {"forward": forward, "backward": backward, "both": forward + backward}
        return self.rows * self.cols * per_element[self.direction]

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: flops per compulsory byte."""
        return self.flops / self.compulsory_bytes
