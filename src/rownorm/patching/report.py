"""What ``rownorm.patch`` did to a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# The lists of a report, and what is said of their modules.
TABLES = {"swapped": "form", "left": "reason", "fused": "form", "unfused": "reason"}


@dataclass(frozen=True)
class Swapped:
    """A module that rownorm computes now."""

    name: str  # as in model.named_modules()
    class_name: str
    form: str  # what it computes, in the words of rownorm's options


@dataclass(frozen=True)
class Left:
    """A module that was not changed."""

    name: str
    class_name: str
    reason: str


@dataclass(frozen=True)
class Fused(Swapped):
    """A swapped norm that is computed together with the residual add before it."""


@dataclass(frozen=True)
class Report:
    """What was swapped, and what was left and why. Print it for a table.

    fused, unfused: of the norms that rownorm computes, if fusing residual adds was asked for.
    """

    model: str  # the model's class
    swapped: tuple[Swapped, ...]
    left: tuple[Left, ...]
    fused: tuple[Fused, ...] = ()
    unfused: tuple[Left, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        counts = {"model": self.model, "n_swapped": len(self.swapped), "n_left": len(self.left)}
        return counts | {name: [asdict(one) for one in getattr(self, name)] for name in TABLES}

    def __str__(self) -> str:
        if not self.swapped and not self.left:
            return f"{self.model}: no norms were found"
        counts = [f"{_norms(len(self.swapped))} swapped"]
        if self.left:
            counts.append(f"{len(self.left)} left alone")
        if self.fused or self.unfused:
            counts.append(f"{len(self.fused)} fused with the residual add before")
        lines = [f"{self.model}: {', '.join(counts)}"]
        for name, text in TABLES.items():
            lines += _table(name, text, getattr(self, name))
        return "\n".join(lines)


def _norms(count: int) -> str:
    return f"{count} norm{'' if count == 1 else 's'}"


def _table(title: str, text_field: str, modules: Sequence[Any]) -> list[str]:
    """One line for the modules of one class, with one form or reason, whose names differ in numbers only."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for one in modules:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", one.name)
        key = (pattern, one.class_name, getattr(one, text_field))
        names.setdefault(key, []).append(one.name)
    if not names:
        return []
    rows = [(title, "class", "where", text_field)]
    for (pattern, class_name, text), alike in names.items():
        where = pattern if len(alike) > 1 else alike[0] or "the model itself"
        rows.append((str(len(alike)), class_name, where, text))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  "
        + "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]
        )
        for row in rows
    ]
