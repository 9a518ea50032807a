"""A study: one width of one kind of norm, whose fastest launch settings are searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rownorm.inside import (
    ACTIVATIONS,
    Activation,
    Device,
    Direction,
    Problem,
    Program,
    execute,
    reference,
)

from ...data.case import DTYPES, Case, Operation, torch_dtype
from ...providers import data

ELEMENTS = 1 << 28  # of one tensor
MOST_ROWS = 32768
ACTIVATION = "silu"  # the activation that the option "activation" is tuned with


class TuningCase(NamedTuple):
    """One row of the table that is to be found."""

    direction: Direction
    center: bool
    dtype: torch.dtype
    n_cols: int
    residual: torch.dtype | None = None
    option: str = ""  # "pre_bias", "activation", the name of one activation, or empty
    rows: int = 0  # 0: as many as ELEMENTS has, at most MOST_ROWS

    @property
    def n_rows(self) -> int:
        return self.rows or min(MOST_ROWS, ELEMENTS // self.n_cols)

    @property
    def activation(self) -> Activation | None:
        name = ACTIVATION if self.option == "activation" else self.option
        return next((one for one in ACTIVATIONS if one == name), None)

    @property
    def key(self) -> str:
        """Its name: ``rms_norm forward bf16, 4096 columns``."""
        option = " for any activation" if self.option == "activation" else ""
        return f"{self.case(1).kind}, {self.n_cols} columns{option}"

    def case(self, n_rows: int) -> Case:
        """The case of the lab with this many rows."""
        names = {torch_dtype(name): name for name in DTYPES}
        norms: dict[tuple[bool, bool], Operation] = {
            (False, False): "rms_norm",
            (True, False): "layer_norm",
            (False, True): "add_rms_norm",
            (True, True): "add_layer_norm",
        }
        return Case(
            operation=norms[self.center, self.residual is not None],
            direction=self.direction,
            rows=n_rows,
            cols=self.n_cols,
            dtype=names[self.dtype],
            residual_dtype=None if self.residual is None else names[self.residual],
            pre_bias=self.option == "pre_bias",
            activation=self.activation,
        )

    def problem(self, device: Device) -> Problem:
        """The problem on a device, whose plan is the settings of calls without ``force``."""
        forward, pre_bias = self.direction == "forward", self.option == "pre_bias"
        itemsizes = {dtype.itemsize for dtype in (self.dtype, self.residual) if dtype}
        return Problem(
            self.direction,
            self.n_rows,
            self.n_cols,
            self.dtype,
            self.residual,
            self.center,
            n_column_sums=0 if forward else 1 + self.center + pre_bias,
            device=device,
            activation=self.activation,
            pre_bias=forward and pre_bias,
            mixed=not forward and itemsizes == {2, 4},
        )

    @property
    def vector(self) -> int:
        """Columns in 16 bytes; of the wider dtype if x and the residual differ."""
        return 16 // max(dtype.itemsize for dtype in (self.dtype, self.residual) if dtype)


Call = Callable[[], Sequence[Tensor]]  # gives the outputs, in the order of ``data.output_names``


def calls_of(case: Case, sets: Sequence[data.Tensors]) -> list[Call]:
    """One call for each set of tensors, without autograd: a plan that is forced is that of this call only."""
    program = data.program_of(case)
    make = _forward if case.direction == "forward" else _backward
    plain = [
        data.Tensors(*(None if t is None else t.detach() for t in tensors))  # type: ignore[arg-type]
        for tensors in sets
    ]
    return [make(case, program, tensors) for tensors in plain]


def _forward(case: Case, program: Program, t: data.Tensors) -> Call:
    inputs = t.inputs

    def call() -> Sequence[Tensor]:
        y, h, _, _ = execute.forward(*inputs, program, False)
        return (y,) if h is None else (y, h)

    return call


def _backward(case: Case, program: Program, t: data.Tensors) -> Call:
    inputs = t.inputs
    outputs = reference.ForwardOutputs(*execute.forward(*inputs, program, True))  # type: ignore[arg-type]
    assert t.dy is not None
    saved = reference.backward_inputs(t.dy, t.dh, inputs, outputs)
    # If x and the residual have the same dtype, and no gate is between them, one tensor is the gradient of both.
    has_own = case.torch_residual_dtype != case.torch_dtype or case.residual_gate
    own_gradient = case.adds and has_own
    wanted = (True, own_gradient, *(each is not None for each in inputs[2:]))

    def call() -> Sequence[Tensor]:
        dx, dresidual, *parameters = execute.backward(saved, program, case.adds, wanted)
        rows: list[Any] = [dx, dx if dresidual is None else dresidual] if case.adds else [dx]
        return [*rows, *(gradient for gradient in parameters if gradient is not None)]

    return call
