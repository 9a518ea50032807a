"""Checks of inputs and options. An error names the operation, the rule, the value that was passed, and a fix."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from ..program import COLUMNS, DTYPES, INPUTS, OPTIONS, RESULTS, SAMPLES, SAVED, Program
from ..reference import BackwardInputs

MAX_COLS = 1 << 30
# The address of a tensor whose storage was freed is its offset there. Only a tensor below this address is asked whether
# it has memory: those of a GPU lie above, and on a CPU most do.
LOW_ADDRESS = 1 << 32


def check(inputs: Sequence[Tensor | None], program: Program) -> None:
    """Raise ValueError or TypeError unless the row program can be computed for these tensors and options.

    inputs: in the order of ``Inputs``.
    """
    x, residual = inputs[:2]
    given = {name: t for name, t in zip(INPUTS, inputs, strict=True) if t is not None}
    operation = f"rownorm.{'add_' if residual is not None else ''}{program.name}"
    check_options(operation, program, given)
    if residual is None and "residual_gate" in given:
        raise ValueError(
            f"{operation}: residual_gate multiplies x before a residual is added, and there is no residual. "
            f"Call rownorm.add_{program.name} with one."
        )
    _check_rows(operation, "x", x)
    assert x is not None
    _check_out_dtype(operation, program, x, residual)
    given.pop("x")
    for name, t in given.items():
        extent = INPUTS[name].extent
        if extent == "rows":
            _check_rows(operation, name, t)
            _check_shape_of_x(operation, name, t, x)
        else:
            _check_tensor(operation, name, t)
            if extent == "columns":
                _check_columns(operation, name, t, x.shape[-1])
            else:
                _check_samples(operation, name, t, x)
        _check_device(operation, name, t, x)


class RowsOf(NamedTuple):
    """What the rows of a tensor are like, without the tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


def check_gradients(
    dy: Tensor | None,
    dh: Tensor | None,
    *,
    like: Tensor | RowsOf,
    y_dtype: torch.dtype | None = None,
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
                f"{tuple(like.shape)}, {dtype or gradient.dtype}, {like.device}; "
                f"got {tuple(gradient.shape)}, {gradient.dtype}, {gradient.device}"
            )


def check_backward(inputs: BackwardInputs) -> None:
    """Raise unless these are tensors that a forward pass can have left for its backward pass."""
    h = inputs.h
    check_gradients(inputs.dy, inputs.dh, like=h)
    for name in SAVED[1:]:
        t = getattr(inputs, name)
        if t is None:
            continue
        if name in COLUMNS:
            shape = h.shape[-1:]
        elif name in RESULTS:  # mu and rstd
            shape = h.shape[:-1]
        else:
            shape = h.shape
        fits = broadcasts_to(t.shape, shape) if name in SAMPLES else t.shape == shape
        if not fits or t.device != h.device:
            rule = "a shape that broadcasts to" if name in SAMPLES else "the shape"
            raise RuntimeError(
                f"rownorm.norm_backward: {name} must have {rule} {tuple(shape)} and the device of h, {h.device}; "
                f"got {tuple(t.shape)} on {t.device}"
            )


def check_memory(
    names: Sequence[str], tensors: Sequence[Tensor | None], addresses: Sequence[int | None]
) -> None:
    """Raise where a tensor has elements but no memory: a kernel would read an address that is no memory."""
    for i, address in enumerate(addresses):
        if address is not None and address < LOW_ADDRESS:
            name, t = names[i], tensors[i]
            assert t is not None
            if has_memory(t):
                continue
            raise RuntimeError(
                f"rownorm: {name} has {t.numel()} elements, but no memory. Its storage was freed, for example by a "
                "sharded module outside its forward, or it stands for zeros: materialize it with .clone()."
            )


def has_memory(t: Tensor) -> bool:
    """Whether there is memory for the elements of a tensor. One that stands for zeros has none."""
    if t.numel() == 0 or t.is_meta:
        return True
    return not t._is_zerotensor() and t.untyped_storage().data_ptr() != 0


def check_options(operation: str, program: Program, tensors: Collection[str]) -> None:
    """Raise unless every option has an allowed value beside these tensors, given by name."""
    for name, option in OPTIONS.items():
        value = getattr(program, name)
        if option.is_number:
            _check_number(operation, name, value)
        elif isinstance(value, Tensor) or value not in option.values:
            _unknown(operation, name, value, option.values)
    if program.eps < 0:
        raise ValueError(
            f"{operation}: eps must not be negative, it is added to a variance; got {program.eps}"
        )
    for name in ("weight", "scale"):
        value = getattr(program, f"{name}_shift")
        if value != 0 and name not in tensors:
            raise ValueError(
                f"{operation}: {name}_shift is added to {name}, and there is no {name}; "
                f"got {name}_shift={value}. Pass a {name}, or leave {name}_shift out."
            )
    for name in ("gate_activation", "gate_first"):
        value = getattr(program, name)
        if value and "gate" not in tensors:
            raise ValueError(
                f"{operation}: {name} says what is done with gate, and there is no gate; got {name}={value!r}. "
                f"Pass a gate, or leave {name} out."
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
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        raise ValueError(
            f"{operation}: {name} must be finite; got an integer that no float can hold"
        ) from None
    if not is_finite:
        raise ValueError(f"{operation}: {name} must be finite; got {value}")


def _check_tensor(operation: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{operation}: {name} must be a torch.Tensor; got {type(value).__name__}")
    if value.dtype not in DTYPES:
        fix = ".dequantize()" if value.is_quantized else ".to(torch.float32)"
        raise TypeError(
            f"{operation}: {name} must be one of {_names(DTYPES)}; got {value.dtype}. Convert it with {fix}."
        )
    if value.is_nested:
        raise TypeError(
            f"{operation}: {name} must be a dense tensor; got a nested one. "
            f"Convert it with torch.nested.to_padded_tensor({name}, 0.0), or normalize its parts: {name}.unbind()."
        )
    if value.layout != torch.strided:
        raise TypeError(
            f"{operation}: {name} must be a dense tensor; got layout {value.layout}. Convert it with .to_dense()."
        )


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


def _check_shape_of_x(operation: str, name: str, value: Tensor, x: Tensor) -> None:
    if value.shape != x.shape:
        raise ValueError(
            f"{operation}: {name} must have the shape of x, {tuple(x.shape)}; "
            f"got {tuple(value.shape)}. Expand or reshape it first."
        )


def _check_columns(operation: str, name: str, value: Tensor, n_cols: int) -> None:
    if value.shape != (n_cols,):
        raise ValueError(
            f"{operation}: {name} must have shape ({n_cols},), the last dimension of x; "
            f"got {tuple(value.shape)}. To normalize over several dimensions, use "
            "rownorm.functional or flatten them first."
        )


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of one shape broadcasts to the other."""
    sizes = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, full) for size, full in sizes)


def _check_samples(operation: str, name: str, value: Tensor, x: Tensor) -> None:
    if broadcasts_to(value.shape, x.shape):
        return
    of_samples = (*x.shape[:1], *(1 for _ in x.shape[1:-1]), x.shape[-1])
    one_row = f"({x.shape[-1]},)"
    examples = f"{of_samples} and {one_row} do" if x.dim() > 1 else f"{one_row} does"
    is_row_of_each_sample = x.dim() == 3 and value.shape == (x.shape[0], x.shape[-1])
    fix = (
        f" For one row for each sample, pass {name}.unsqueeze(1)." if is_row_of_each_sample else ""
    )
    raise ValueError(
        f"{operation}: {name} must broadcast to the shape of x, {tuple(x.shape)}, as {examples}; "
        f"got {tuple(value.shape)}.{fix}"
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
    dtypes = [one for one in known if isinstance(one, torch.dtype)]
    if dtypes:
        raise TypeError(
            f"{operation}: {option} must be one of {_names(dtypes)}, or None for the dtype of x; got {value!r}"
        )
    near = difflib.get_close_matches(str(value), [str(name) for name in known], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    names = ", ".join(repr(name) for name in known)
    raise ValueError(f"{operation}: {option} must be one of {names}; got {value!r}.{hint}")
