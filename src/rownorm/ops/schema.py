"""The operators' schemas, which follow from the description in ``program``."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from ..program import ARGUMENTS, DEFAULT_EPS, GRADIENTS, RESULTS, WITH_RESIDUAL, Inputs, Program
from ..reference import BackwardInputs

REQUIRED = ("x", "residual")  # where an operator has them
# The schema language's name of a type.
_TYPES: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    torch.dtype: "ScalarType",
    Tensor: "Tensor",
}


def norm(name: str) -> str:
    """The schema of a public function's operator."""
    has_residual, eps = name.startswith("add_"), DEFAULT_EPS[name.removeprefix("add_")]
    tensors = [
        f"Tensor {argument}" if argument in REQUIRED else f"Tensor? {argument}=None"
        for argument in ARGUMENTS
        if has_residual or argument not in WITH_RESIDUAL
    ]
    types = get_type_hints(Program)
    defaults = {**Program._field_defaults, "eps": eps}
    options = [
        f"{_type(types[option])} {option}={_literal(defaults[option])}"
        for option in Program._fields
        if option != "center"
    ]
    outputs = "(Tensor y, Tensor h)" if has_residual else "Tensor"
    return f"{name}({', '.join((*tensors, '*', *options))}) -> {outputs}"


def norm_forward() -> str:
    """The schema of the forward pass that autograd records."""
    arguments = (*_arguments(Inputs), *_arguments(Program))
    return f"norm_forward({', '.join(arguments)}) -> {_tensors(RESULTS)}"


def norm_backward() -> str:
    """The schema of its backward pass."""
    arguments = (*_arguments(BackwardInputs), *_arguments(Program))
    return (
        f"norm_backward({', '.join(arguments)}, bool has_residual, bool[] wanted) "
        f"-> {_tensors(GRADIENTS)}"
    )


def _arguments(fields: Any) -> list[str]:
    """Every field, positional, without defaults."""
    types = get_type_hints(fields)
    return [f"{_type(types[name])} {name}" for name in fields._fields]


def _tensors(names: tuple[str, ...]) -> str:
    return f"({', '.join(f'Tensor {name}' for name in names)})"


def _type(kind: Any) -> str:
    alternatives = [one for one in get_args(kind) if one is not NoneType]
    if get_origin(kind) is Literal:
        return "str"
    if len(alternatives) == 1:  # or None
        return f"{_type(alternatives[0])}?"
    return _TYPES[kind]


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
