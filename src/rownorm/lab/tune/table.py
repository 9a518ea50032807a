"""The tuned table: its rows, its order, and its file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TableRow = dict[str, Any]  # one row: what it applies to, settings, figures


def shipped_table(arch: str) -> Path | None:
    """The table of the package for an architecture (``sm_90``), or None."""
    package = Path(__file__).parents[2] / "launch"
    return next(package.glob(f"**/tables/{arch}.json"), None)


def kind_of(row: TableRow) -> tuple[Any, ...]:
    """What a row applies to; the rows of a table are in this order."""
    kind = (row["itemsize"], row["residual"], row["option"])
    return *kind, row["direction"] == "backward", row["center"], row["max_cols"]


def updated(old: Sequence[TableRow], new: Iterable[TableRow]) -> list[TableRow]:
    """The rows of ``old`` with the measured rows in place of those of the same kind, in order.

    Keys that the tuner does not write (``experiment``) are kept.
    """
    before = {_identity(row): row for row in old}
    measured = [_with_other_keys(row, before.get(_identity(row), {})) for row in new]
    replaced = {kind_of(row) for row in measured}
    return sorted(measured + [row for row in old if kind_of(row) not in replaced], key=kind_of)


def _identity(row: TableRow) -> tuple[Any, ...]:
    """Two rows may have one kind: one in chunks (``looped``), and one for widths that do not fill the chunks."""
    return *kind_of(row), row["settings"]["regime"] == "looped"


def _with_other_keys(row: TableRow, old: TableRow) -> TableRow:
    written = {*row, "measured_cols"}
    return row | {key: value for key, value in old.items() if key not in written}


def write_table(file: Path, device: str, torch: str, triton: str, rows: Sequence[TableRow]) -> None:
    """Write a table, one row per line."""
    head = {
        "device": device,
        "torch": torch,
        "triton": triton,
        "date": datetime.date.today().isoformat(),
        "method": "device time from CUDA graphs over inputs larger than L2",
    }
    lines = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
    plans = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    file.write_text(f'{{\n{lines} "plans": [\n{plans}\n ]\n}}\n')


def read_rows(file: Path) -> list[TableRow]:
    """The rows of a table."""
    rows: list[TableRow] = json.loads(file.read_text())["plans"]
    return rows


def line_of(row: TableRow) -> str:
    """A row as one line for the terminal."""
    norm = "layer" if row["center"] else "rms"
    return (
        f"{row['direction']:8} {norm:5} {row['itemsize']}+{row['residual']} bytes {row['option']:10} "
        f"{row['max_cols']:6} columns  {row['gb_per_s']:5} of {row['ceiling_gb_per_s']:5} GB/s  "
        f"{row['settings']}"
    )
