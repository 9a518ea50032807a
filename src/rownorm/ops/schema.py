"""Parts of the operators' schemas that follow from the fields of ``Program``."""

from __future__ import annotations

from typing import Any, get_type_hints

import torch

from ..program import Activation, Program, Rounding

# The schema language's name of a type.
_TYPES: dict[Any, str] = {
    bool: "bool",
    float: "float",
    Rounding: "str",
    Activation | None: "str?",
    torch.dtype | None: "ScalarType?",
}


def program_arguments() -> str:
    """Every field of ``Program``, positional, without defaults."""
    types = get_type_hints(Program)
    return ", ".join(f"{_TYPES[types[name]]} {name}" for name in Program._fields)


def option_arguments(eps: float) -> str:
    """Every field of ``Program`` but ``center``, with its default. eps: the default of the norm."""
    types = get_type_hints(Program)
    defaults = {**Program._field_defaults, "eps": eps}
    return ", ".join(
        f"{_TYPES[types[name]]} {name}={_literal(defaults[name])}"
        for name in Program._fields
        if name != "center"
    )


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
