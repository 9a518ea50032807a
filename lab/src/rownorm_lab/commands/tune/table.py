"""The tuned table: its rows, its order, and its file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from rownorm.inside import parse

from ...data.files import write_whole
from ...data.records import Environment
from .candidates import Settings
from .study import TuningCase

TableRow = dict[str, Any]  # one row: what it applies to, settings, figures
DTYPES = {0: None, 2: torch.bfloat16, 4: torch.float32}  # that rows of an itemsize are tuned with


def row_of(
    study: TuningCase,
    seconds: float,
    settings: Settings,
    ceiling_seconds: float | None,
    runner_up: tuple[float, Settings] | None,
    reason: str,
) -> TableRow:
    """The row of a study: settings, with their bandwidth, the ceiling's and the runner-up's."""
    moved = study.case(study.n_rows).compulsory_bytes

    def gb_per_s(seconds: float) -> int:
        return max(1, round(moved / seconds / 1e9))

    row: TableRow = {
        "direction": study.direction,
        "center": study.center,
        "itemsize": study.dtype.itemsize,
        "residual": study.residual.itemsize if study.residual else 0,
        "option": study.option,
        "max_cols": study.n_cols,
        "settings": settings,
        "gb_per_s": gb_per_s(seconds),
    }
    if ceiling_seconds is not None:
        row["ceiling_gb_per_s"] = gb_per_s(ceiling_seconds)
    if runner_up is not None:
        row["runner_up"] = {"settings": runner_up[1], "gb_per_s": gb_per_s(runner_up[0])}
    return row | {"reason": reason}


def study_of(row: TableRow, n_cols: int | None = None) -> TuningCase:
    """The study that finds a row. n_cols: its width; the widest of the row unless it is given."""
    return TuningCase(
        row["direction"],
        row["center"],
        DTYPES[row["itemsize"]] or torch.bfloat16,
        row["max_cols"] if n_cols is None else n_cols,
        DTYPES[row["residual"]],
        row["option"],
    )


def kind_of(row: TableRow) -> tuple[Any, ...]:
    """What a row applies to; the rows of a table are in this order."""
    kind = (row["itemsize"], row["residual"], row["option"])
    return *kind, row["direction"] == "backward", row["center"], row["max_cols"]


def updated(old: Sequence[TableRow], new: Iterable[TableRow]) -> list[TableRow]:
    """The rows of ``old`` with the measured rows in place of those of the same kind, in order.

    Keys that the tuner does not write (``experiment``) are kept, and rows that name their versions of Triton.
    """
    named = [row for row in old if row.get("triton")]
    old = [row for row in old if not row.get("triton")]
    before = {_identity(row): row for row in old}
    measured = [_with_other_keys(row, before.get(_identity(row), {})) for row in new]
    replaced = {kind_of(row) for row in measured}
    kept = [row for row in old if kind_of(row) not in replaced]
    return sorted(measured + kept + named, key=kind_of)


def _identity(row: TableRow) -> tuple[Any, ...]:
    """Two rows may have one kind: one in chunks (``looped``), and one for widths that do not fill the chunks."""
    return *kind_of(row), row["settings"]["regime"] == "looped"


def _with_other_keys(row: TableRow, old: TableRow) -> TableRow:
    written = {*row, "measured_cols", "runner_up", "reason"}
    return row | {key: value for key, value in old.items() if key not in written}


def write_table(file: Path, here: Environment, rows: Sequence[TableRow]) -> None:
    """Write a table, one row per line, once the planner accepts it."""
    head = {
        "arch": here.arch,
        "device": here.device,
        "torch": here.torch,
        "triton": here.triton,
        "date": datetime.date.today().isoformat(),
        "method": "device time from CUDA graphs over inputs larger than L2",
    }
    write_entries(file, head, rows)


def write_entries(file: Path, head: dict[str, Any], rows: Sequence[TableRow]) -> None:
    """Write what a table says of itself and its entries, one per line, once the planner accepts them."""
    parse({**head, "plans": list(rows)}, file.name, head["arch"])
    lines = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
    plans = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    write_whole(file, f'{{\n{lines} "plans": [\n{plans}\n ]\n}}\n')


def read_rows(file: Path) -> list[TableRow]:
    """The rows of a table of the package."""
    return json.loads(file.read_text())["plans"]


def read_base(file: Path, here: Environment) -> list[TableRow]:
    """The rows of a table that is updated here. ValueError if it is damaged, or its rows do not fit here."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not a table: {error}") from None
    source = parse(content, str(file), here.arch)
    if source.version != tuple(map(int, here.triton.split(".")[:2])):
        raise ValueError(
            f"{file} was tuned with Triton {source.triton}, and here is {here.triton}: one table has one version. "
            "Leave --update out: rows of your own table come before the shipped ones, which stay in use"
        )
    return content["plans"]


def line_of(row: TableRow) -> str:
    """A row as one line for the terminal."""
    norm = "layer" if row["center"] else "rms"
    return (
        f"{row['direction']:8} {norm:5} {row['itemsize']}+{row['residual']} bytes {row['option']:10} "
        f"{row['max_cols']:6} columns  {row['gb_per_s']:5} of {row.get('ceiling_gb_per_s', '?'):>5} GB/s  "
        f"{row['settings']}"
    )
