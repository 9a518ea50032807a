"""Checks of inputs and options. An error names the operation, the rule, the value that was passed, and a fix."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from ..program import ACTIVATIONS, ROUNDINGS, Program
from ..reference import BackwardInputs

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

MAX_COLS = 1 << 30


def check(
    x: Tensor,
    residual: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    program: Program,
) -> None:
    """Raise ValueError or TypeError unless the row program can be computed for these tensors and options."""
    operation = f"rownorm.{'add_' if residual is not None else ''}{program.name}"
    check_options(operation, program, has_weight=weight is not None)
    _check_rows(operation, "x", x)
    _check_out_dtype(operation, program, x, residual)
    if residual is not None:
        _check_rows(operation, "residual", residual)
        if residual.shape != x.shape:
            raise ValueError(
                f"{operation}: residual must have the shape of x, {tuple(x.shape)}; "
                f"got {tuple(residual.shape)}. Expand or reshape it first."
            )
        _check_device(operation, "residual", residual, x)
    n_cols = x.shape[-1]
    for name, parameter in (("pre_bias", pre_bias), ("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        _check_tensor(operation, name, parameter)
        if parameter.shape != (n_cols,):
            raise ValueError(
                f"{operation}: {name} must have shape ({n_cols},), the last dimension of x; "
                f"got {tuple(parameter.shape)}. To normalize over several dimensions, use "
                "rownorm.functional or flatten them first."
            )
        _check_device(operation, name, parameter, x)


def check_gradients(
    dy: Tensor, dh: Tensor | None, *, like: Tensor, y_dtype: torch.dtype | None = None
) -> None:
    """Raise unless the incoming gradients fit rows like these: the kernels trust their shapes.

    like: h, or x where there is no residual. y_dtype: that of dy, if it is known.
    """
    for gradient, dtype in ((dy, y_dtype), (dh, like.dtype)):
        if gradient is None:
            continue
        if (
            gradient.shape != like.shape
            or gradient.device != like.device
            or (dtype is not None and gradient.dtype != dtype)
        ):
            raise RuntimeError(
                "the gradient of a norm must have the shape, dtype and device of its output: "
                f"{tuple(like.shape)}, {dtype or dy.dtype}, {like.device}; "
                f"got {tuple(gradient.shape)}, {gradient.dtype}, {gradient.device}"
            )


def check_backward(inputs: BackwardInputs) -> None:
    """Raise unless these are tensors that a forward pass can have left for its backward pass."""
    dy, dh, h, *parameters, mu, rstd = inputs
    check_gradients(dy, dh, like=h)
    expected = (*((t, h.shape[-1:]) for t in parameters), (mu, h.shape[:-1]), (rstd, h.shape[:-1]))
    for name, (t, shape) in zip(BackwardInputs._fields[3:], expected, strict=True):
        if t is not None and (t.shape != shape or t.device != h.device):
            raise RuntimeError(
                f"rownorm.norm_backward: {name} must have the shape {tuple(shape)} and the device of h, {h.device}; "
                f"got {tuple(t.shape)} on {t.device}"
            )


def check_memory(names: Sequence[str], tensors: Sequence[Tensor | None]) -> None:
    """Raise where a tensor has elements but no memory: a kernel would read address 0."""
    for name, t in zip(names, tensors, strict=True):
        if t is not None and t.numel() and t.data_ptr() == 0 and not t.is_meta:
            raise RuntimeError(
                f"rownorm: {name} has {t.numel()} elements, but no memory. Its storage was freed, for example by a "
                "sharded module outside its forward, or it stands for zeros: materialize it with .clone()."
            )


def check_options(operation: str, program: Program, has_weight: bool) -> None:
    """Raise unless every option has an allowed value."""
    _check_number(operation, "eps", program.eps)
    if program.eps < 0:
        raise ValueError(
            f"{operation}: eps must not be negative, it is added to a variance; got {program.eps}"
        )
    _check_number(operation, "weight_shift", program.weight_shift)
    if program.weight_shift != 0 and not has_weight:
        raise ValueError(
            f"{operation}: weight_shift is added to weight, and there is no weight; "
            f"got weight_shift={program.weight_shift}. Pass a weight, or leave weight_shift out."
        )
    if program.activation is not None and program.activation not in ACTIVATIONS:
        _unknown(operation, "activation", program.activation, (None, *ACTIVATIONS))
    if program.rounding not in ROUNDINGS:
        _unknown(operation, "rounding", program.rounding, ROUNDINGS)
    if program.out_dtype is not None and program.out_dtype not in DTYPES:
        raise TypeError(
            f"{operation}: out_dtype must be one of {_names(DTYPES)}, or None for the dtype of x; "
            f"got {program.out_dtype!r}"
        )


def _check_out_dtype(operation: str, program: Program, x: Tensor, residual: Tensor | None) -> None:
    """Rows are computed in fp32 unless one of them is fp64. So an fp64 result of other rows would pretend precision."""
    rows = (x.dtype, None if residual is None else residual.dtype)
    if program.out_dtype == torch.float64 and torch.float64 not in rows:
        raise ValueError(
            f"{operation}: out_dtype float64 needs fp64 rows, because others are computed in fp32; "
            f"got x in {x.dtype}. Convert x with .double(), or the result."
        )


def _check_number(operation: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{operation}: {name} must be a Python number; got {type(value).__name__}. "
            "A tensor's value can be taken with .item()."
        )
    if not math.isfinite(value):
        raise ValueError(f"{operation}: {name} must be finite; got {value}")


def _check_tensor(operation: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{operation}: {name} must be a torch.Tensor; got {type(value).__name__}")
    if value.dtype not in DTYPES:
        raise TypeError(
            f"{operation}: {name} must be one of {_names(DTYPES)}; got {value.dtype}. "
            "Convert it with .to(torch.float32)."
        )
    if value.layout != torch.strided:
        raise TypeError(f"{operation}: {name} must be a dense tensor; got layout {value.layout}")


def _check_rows(operation: str, name: str, value: object) -> None:
    _check_tensor(operation, name, value)
    assert isinstance(value, Tensor)
    if value.dim() == 0 or value.shape[-1] == 0:
        raise ValueError(
            f"{operation}: {name} must have rows of at least one column, since the mean of nothing is "
            f"undefined; got shape {tuple(value.shape)}"
        )
    if value.shape[-1] > MAX_COLS:
        raise ValueError(
            f"{operation}: {name} must have rows of at most {MAX_COLS} columns, which the kernels count in 32 bits; "
            f"got shape {tuple(value.shape)}"
        )


def _check_device(operation: str, name: str, value: Tensor, x: Tensor) -> None:
    if value.device != x.device:
        raise ValueError(
            f"{operation}: {name} must be on the device of x, {x.device}; got {value.device}. "
            f"Move it with {name}.to(x.device)."
        )


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _unknown(operation: str, option: str, value: object, known: Sequence[object]) -> NoReturn:
    near = difflib.get_close_matches(str(value), [str(name) for name in known], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    names = ", ".join(repr(name) for name in known)
    raise ValueError(f"{operation}: {option} must be one of {names}; got {value!r}.{hint}")
