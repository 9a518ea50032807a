"""Time the entries of the shipped table beside the settings next to theirs, and store the best of those. Needs a GPU.

    python tools/runners_up.py measure results/runners --limit-s 300    # the same folder again continues
    python tools/runners_up.py write results/runners                    # into the shipped table; needs no GPU

The search that chose an entry may have kept no journal, so the entry has no runner-up. ``measure`` takes the
candidates of the tuner that differ least from an entry's settings, and times them and the entry in turns.
``write`` stores the fastest of them as ``runner_up``: its GB/s are the entry's, times the ratio of the two times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rownorm.inside import Device, Table, parse, tables
from rownorm_lab.commands.tune.candidates import DEFAULTS, Settings, candidates
from rownorm_lab.commands.tune.gpu import gpu_here
from rownorm_lab.commands.tune.study import ELEMENTS, TuningCase
from rownorm_lab.commands.tune.table import TableRow, kind_of, read_rows, study_of, write_entries
from rownorm_lab.commands.tune.verify import same, used_at

NEIGHBORS = 4  # that are timed beside an entry
ROUNDS = 15
JOURNAL = "runners.jsonl"
ANOTHER_REGIME = 3  # counts as so many other settings
SHORT_ROW = 2048  # bytes
MANY_ROWS_GB_PER_S = 4200  # of the ceiling of an H200


@click.group(help=__doc__.splitlines()[0])
def main() -> None:
    """The command group."""


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--workers", default=14, show_default=True, help="Processes that compile.")
@click.option("--limit-s", type=float, help="Begin no entry after so many seconds.")
def measure(folder: Path, workers: int, limit_s: float | None) -> None:
    """Time entries that the folder's journal does not have, 16-bit ones without options first."""
    began = time.monotonic()
    gpu = gpu_here(workers)
    rows = used_rows(tables.shipped_file(gpu.device.arch), gpu.device)
    folder.mkdir(parents=True, exist_ok=True)
    known = {line["entry"] for line in read(folder)}
    todo = [(row, study) for row, study in rows if identity(row) not in known]
    with gpu.ahead, (folder / JOURNAL).open("a") as journal:
        near = {study: neighbors(study, row["settings"], gpu.device) for row, study in todo}
        for study, several in near.items():
            gpu.ahead.begin(study, several)
        for number, (row, study) in enumerate(todo):
            if limit_s is not None and time.monotonic() - began > limit_s:
                click.echo(f"{len(todo) - number} of {len(rows)} entries are left")
                gpu.ahead.__exit__(KeyboardInterrupt)
                break
            compiled = gpu.ahead(study, near[study])
            usable = [
                one
                for one, found in zip(near[study], compiled, strict=True)
                if found is None or not found.cause
            ]
            timer = gpu.timer_of(study)
            good = [
                one
                for one, (status, _) in zip(usable, timer.check(usable), strict=True)
                if status == "ok"
            ]
            seconds = timer.seconds_in_turns([row["settings"], *good], ROUNDS)
            line = {"entry": identity(row), "settings": [row["settings"], *good]}
            journal.write(json.dumps({**line, "seconds": seconds}) + "\n")
            journal.flush()
            best = min(seconds[1:], default=float("nan"))
            click.echo(f"{study.key}: the next takes {best / seconds[0]:.3f}")


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--table",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=tables.shipped_file("sm_90"),
    show_default=True,
)
def write(folder: Path, file: Path) -> None:
    """Store the runners-up, and list the entries that were slower than their neighbors."""
    content = json.loads(file.read_text())
    found = {line["entry"]: line for line in read(folder)}
    for row in content["plans"]:
        line = found.get(identity(row))
        if line is None or len(line["seconds"]) < 2:
            continue
        own, *others = line["seconds"]
        best = min(others)
        row["runner_up"] = {
            "settings": line["settings"][1 + others.index(best)],
            "gb_per_s": round(row["gb_per_s"] * own / best),
        }
        if best < own:
            click.echo(f"{identity(row)}: {best / own:.3f} with {row['runner_up']['settings']}")
    rows = content.pop("plans")
    write_entries(file, content, rows)


def used_rows(file: Path | None, device: Device) -> list[tuple[TableRow, TuningCase]]:
    """The entries that planning uses with this Triton, each with a study of a width at which it does."""
    assert file is not None, f"rownorm ships no table for {device.arch}"
    table = Table(parse(json.loads(file.read_text()), file.name, device.arch))
    used = [(row, used_at(row, table, device)) for row in read_rows(file)]
    pairs = [(row, _as_measured(row, study_of(row, n_cols))) for row, n_cols in used if n_cols]
    return sorted(pairs, key=lambda pair: (pair[0]["option"], *kind_of(pair[0])))


def _as_measured(row: TableRow, study: TuningCase) -> TuningCase:
    """The study with as many rows as the entry was measured with.

    Short rows reach such a ceiling only with all ELEMENTS.
    """
    row_bytes = study.n_cols * (row["itemsize"] + row["residual"])
    is_many = row_bytes < SHORT_ROW and row.get("ceiling_gb_per_s", 0) > MANY_ROWS_GB_PER_S
    return study._replace(rows=ELEMENTS // study.n_cols) if is_many else study


def neighbors(study: TuningCase, settings: Settings, device: Device) -> list[Settings]:
    """The candidates that differ least from these settings."""
    others = [one for one in candidates(study, device) if not same(one, settings)]
    return sorted(others, key=lambda one: distance(one, settings))[:NEIGHBORS]


def distance(a: Settings, b: Settings) -> int:
    """In how many settings two plans differ."""
    whole_a, whole_b = DEFAULTS | a, DEFAULTS | b
    differing = {name for name in whole_a if whole_a[name] != whole_b.get(name)}
    return len(differing) + (ANOTHER_REGIME if "regime" in differing else 0)


def identity(row: TableRow) -> str:
    """An entry's name in the journal: what it applies to."""
    names = ("direction", "center", "itemsize", "residual", "option", "max_cols", "triton")
    parts = [str(row[name]) for name in names if name in row]
    return " ".join([*parts, row["settings"]["regime"]])


def read(folder: Path) -> Sequence[dict[str, Any]]:
    """The lines of a journal; a line that was cut off is left out."""
    file = folder / JOURNAL
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


if __name__ == "__main__":
    main()
