"""A study: one width of one kind of norm, whose fastest launch settings are searched."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...ops import execute
from ...program import ACTIVATIONS, Program
from ...reference import BackwardInputs
from ..cases.case import DTYPES, Case, Direction, Operation, torch_dtype

ELEMENTS = 1 << 28  # of one tensor
MOST_ROWS = 32768
ACTIVATION = "silu"  # the activation that the option "activation" is tuned with


class Study(NamedTuple):
    """One row of the table that is to be found."""

    direction: Direction
    center: bool
    dtype: torch.dtype
    n_cols: int
    residual: torch.dtype | None = None
    option: str = ""  # "pre_bias", "activation", the name of one activation, or empty

    @property
    def n_rows(self) -> int:
        return min(MOST_ROWS, ELEMENTS // self.n_cols)

    @property
    def activation(self) -> str | None:
        name = ACTIVATION if self.option == "activation" else self.option
        return name if name in ACTIVATIONS else None

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

    @property
    def vector(self) -> int:
        """Columns in 16 bytes; of the wider dtype if x and the residual differ."""
        return 16 // max(dtype.itemsize for dtype in (self.dtype, self.residual) if dtype)


def prepared(study: Study, n_rows: int, copies: int) -> tuple[Any, Any, list[Any], int]:
    """(call, ceiling, sets of inputs, bytes that one call must move). call and ceiling take one set of inputs."""
    program = Program(study.center, 1e-5, activation=study.activation)
    shape = (n_rows, study.n_cols)
    options: dict[str, Any] = {"device": "cuda", "dtype": study.dtype}
    weight = torch.randn(study.n_cols, **options)
    bias = torch.randn(study.n_cols, **options) if study.center else None
    pre_bias = torch.randn(study.n_cols, **options) if study.option == "pre_bias" else None
    adds = study.residual is not None
    rows = [torch.randn(shape, **options) for _ in range(copies)]
    residuals = [torch.randn_like(x, dtype=study.residual) if adds else None for x in rows]
    moved = study.case(n_rows).compulsory_bytes
    if study.direction == "forward":

        def forward(one: Any) -> Any:
            x, residual = one
            return execute.forward(x, residual, pre_bias, weight, bias, program, False)

        pairs = list(zip(rows, residuals, strict=True))
        return forward, _ceiling(study, moved), pairs, moved
    sets = []
    for x, residual in zip(rows, residuals, strict=True):
        _, h, mu, rstd = execute.forward(x, residual, pre_bias, weight, bias, program, True)
        sets.append((x if h is None else h, torch.randn_like(x), residual, mu, rstd))
    two_gradients = adds and study.residual != study.dtype
    wanted = (True, two_gradients, pre_bias is not None, True, study.center)

    def backward(one: Any) -> Any:
        h, dy, dh, mu, rstd = one
        inputs = BackwardInputs(dy, dh, h, pre_bias, weight, bias, mu, rstd)
        return execute.backward(inputs, program, adds, wanted)

    return backward, _ceiling(study, moved), sets, moved


def _ceiling(study: Study, moved: int) -> Any:
    """PyTorch's elementwise kernel that moves as many bytes."""
    if study.residual is None and study.direction == "forward":
        return lambda one: torch.neg(one[0])
    if study.residual is None:
        return lambda one: torch.add(one[0], one[1])
    a, b = torch.zeros(2, moved // (3 * study.dtype.itemsize), dtype=study.dtype, device="cuda")
    return lambda _: torch.add(a, b)
