"""Which norm a Definition computes.

The shapes and dtypes of its tensors suggest what they are. Its reference decides: it runs on a CPU, on ordinary rows
and on rows so small that eps matters, and exactly one row program must give its results.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from flashinfer_bench import AxisConst, Definition
from torch import Tensor

from rownorm.inside import Inputs, Program
from rownorm.inside import reference as row_program

from ..data.case import Operation
from .definition import DTYPE_NAMES, Norm

EPS = (1e-5, 1e-6, 1e-8, 1e-12)
SHIFTS = (0.0, 1.0)
RESIDUAL, BIAS = ("residual",), ("bias", "beta")
ROWS = 3


class NotServed(ValueError):
    """rownorm cannot serve a Definition; the message says why."""


def recognize(definition: Definition) -> Norm:
    """The norm that a Definition computes; raises NotServed."""
    return _recognize(definition.model_dump_json())


@functools.cache
def _recognize(text: str) -> Norm:
    """As ``recognize``, by the Definition's text, so that each is probed once."""
    definition = Definition.model_validate_json(text)
    described = _described(definition)
    try:
        reference = _reference(definition)
        agreeing = [norm for norm in _candidates(described) if _agrees(reference, norm)]
    except Exception as error:
        raise NotServed(
            f"its reference does not run on a CPU: {type(error).__name__}: {error}"
        ) from error
    if not agreeing:
        raise NotServed("its reference computes no norm that rownorm has")
    if len(agreeing) > 1:
        raise NotServed(
            "several norms give the results of its reference; they cannot be told apart"
        )
    return agreeing[0]


def _described(definition: Definition) -> Norm:
    """A norm with the tensors of a Definition: what its shapes, dtypes and names say."""
    tensors = [*definition.inputs.values(), *definition.outputs.values()]
    rows = [spec for spec in tensors if spec.shape is not None and len(spec.shape) == 2]
    if not rows:
        raise NotServed("it has no tensor of rows and columns")
    rows_axis, cols_axis = rows[0].shape
    cols = definition.axes[cols_axis]
    if not isinstance(cols, AxisConst) or isinstance(definition.axes[rows_axis], AxisConst):
        raise NotServed("the first axis of its rows must vary and the second must be constant")
    names = {spec.dtype.value for spec in tensors if spec.shape is not None}
    dtypes = [short for short, name in DTYPE_NAMES.items() if {name} == names]
    if not dtypes:
        raise NotServed(
            f"its tensors are {', '.join(sorted(names))}; rownorm serves one of fp16, bf16, fp32"
        )
    inputs = _input_roles(definition, rows_axis, cols_axis)
    for name, spec in definition.outputs.items():
        if spec.shape is None or list(spec.shape) != [rows_axis, cols_axis]:
            raise NotServed(f"its output {name} is not rows")
    if len(definition.outputs) > (2 if "residual" in inputs else 1):
        raise NotServed(f"it has {len(definition.outputs)} outputs")
    outputs = dict(zip(("y", "h"), definition.outputs, strict=False))
    return Norm("rms_norm", cols.value, dtypes[0], None, rows_axis, inputs, outputs)


def _input_roles(definition: Definition, rows_axis: str, cols_axis: str) -> dict[str, str]:
    """Role to name."""
    inputs: dict[str, str] = {}
    for name, spec in definition.inputs.items():
        if spec.shape is None:
            role = "eps"
        elif list(spec.shape) == [rows_axis, cols_axis]:
            role = "residual" if any(word in name for word in RESIDUAL) else "x"
        elif list(spec.shape) == [cols_axis]:
            role = "bias" if any(word in name for word in BIAS) else "weight"
        else:
            raise NotServed(f"its input {name} is neither rows, nor a parameter, nor a scalar")
        if role in inputs:
            raise NotServed(f"its inputs {inputs[role]} and {name} cannot be told apart")
        inputs[role] = name
    if not {"x", "weight"} <= inputs.keys():
        raise NotServed("it needs rows and a weight")
    return inputs


def _candidates(described: Norm) -> Iterator[Norm]:
    """Every norm with these tensors. Either of two outputs may be the sum with the residual."""
    add = "add_" if "residual" in described.inputs else ""
    orders = [described.outputs]
    if len(described.outputs) == 2:
        orders.append(dict(zip(("h", "y"), described.outputs.values(), strict=True)))
    all_eps: tuple[float | None, ...] = (None,) if "eps" in described.inputs else EPS
    for kind, eps, shift, outputs in itertools.product(
        ("rms_norm", "layer_norm"), all_eps, SHIFTS, orders
    ):
        operation: Operation = f"{add}{kind}"  # type: ignore[assignment]
        yield described._replace(operation=operation, eps=eps, weight_shift=shift, outputs=outputs)


def _reference(definition: Definition) -> Any:
    namespace: dict[str, Any] = {}
    exec(compile(definition.reference, f"<reference of {definition.name}>", "exec"), namespace)
    return namespace["run"]


def _agrees(reference: Any, norm: Norm) -> bool:
    """Whether the reference and the row program give the same, up to one rounding of the outputs and noise."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, DTYPE_NAMES[norm.dtype])
    for scale, eps in ((1.0, 1e-5), (1e-3, 1e-6), (1e-5, 1e-3)):

        def rows(scale: float = scale) -> Tensor:
            return (scale * torch.randn(ROWS, norm.cols, generator=generator)).to(dtype)

        def parameter() -> Tensor:
            return torch.randn(norm.cols, generator=generator).to(dtype)

        values: dict[str, Any] = {
            role: rows() if role in ("x", "residual") else parameter() for role in norm.inputs
        }
        if "eps" in values:
            values["eps"] = eps
        got = reference(*(values[role] for role in norm.inputs))
        got = (got,) if isinstance(got, Tensor) else tuple(got)
        program = Program(
            norm.centers, norm.eps if norm.eps is not None else eps, norm.weight_shift
        )
        inputs = Inputs(
            values["x"], values.get("residual"), None, values["weight"], values.get("bias")
        )
        expected = row_program.forward(*inputs, program)
        wanted = {"y": expected.y, "h": expected.h}
        if len(got) != len(norm.outputs):
            return False
        for role, tensor in zip(norm.outputs, got, strict=True):
            if not _close(tensor, wanted[role]):
                return False
    return True


def _close(got: Tensor, wanted: Tensor | None) -> bool:
    """Equal within two steps of the dtype at the size of the row. A wrong eps or a missing mean is far outside."""
    if wanted is None or got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    size = wanted.float().square().mean(-1, keepdim=True).sqrt()
    limit = 2 * max(torch.finfo(wanted.dtype).eps, 1e-5) * torch.maximum(wanted.float().abs(), size)
    return bool(((got.float() - wanted.float()).abs() <= limit).all())
