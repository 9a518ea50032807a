"""``rownorm fib export``: a new dataset, or Solutions for the Definitions of one that exists."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from ...data.case import Dtype, Operation
from ...data.files import write_whole
from ...data.texts import count
from ...fib.dataset import Dataset, as_text, solution_path, write_new
from ...fib.definition import (
    BATCHES,
    CONVENTIONS,
    COURSE_COLS,
    PUBLIC_COLS,
    default_eps,
    definition_of,
    norm_of,
    workloads_of,
)
from ...fib.recognize import NotServed, recognize
from ...fib.solutions import solutions_of


def export_new(
    folder: Path,
    convention: str,
    operations: Sequence[Operation] | Sequence[str],
    dtypes: Sequence[Dtype] | Sequence[str],
    cols: Sequence[int],
    batches: Sequence[int],
    eps: float | None,
) -> None:
    """Write a dataset into ``folder``. Empty sequences and None are the defaults of the convention."""
    widths = cols or (PUBLIC_COLS if convention == "public" else COURSE_COLS)
    for operation in operations or ("rms_norm",):
        for dtype in dtypes or (CONVENTIONS[convention].dtype,):
            for width in widths:
                value = default_eps(convention, operation, width) if eps is None else eps  # type: ignore[arg-type]
                norm = norm_of(convention, operation, width, dtype, value)  # type: ignore[arg-type]
                definition = definition_of(convention, norm)
                workloads = workloads_of(definition, norm, batches or BATCHES, value)
                solutions = solutions_of(definition, norm)
                write_new(folder, definition, workloads, solutions)
                names = ", ".join(one.name for one in solutions)
                click.echo(f"{definition.name}: {count(len(workloads), 'workload')}; {names}")
    quoted = shlex.quote(str(folder))
    click.echo(f"Next: rownorm fib check {quoted}, and on a GPU rownorm fib run {quoted}")


def serve_dataset(dataset: Dataset) -> int:
    """Add Solutions to a dataset. Files that exist are kept. Return the exit status: 1 if a Definition is skipped."""
    content, skipped, written, kept = dataset.content, 0, 0, 0
    for name, definition in content.definitions.items():
        try:
            norm = recognize(definition)
        except NotServed as reason:
            click.echo(f"Definition {name}: skipped: {reason}", err=True)
            skipped += 1
            continue
        for solution in solutions_of(definition, norm):
            path, text = solution_path(Path(content.root), definition, solution), as_text(solution)
            if path.exists() or content.get_solution(solution.name) is not None:
                differs = not path.exists() or path.read_text() != text
                note = "it differs from what would be written; remove it to replace it"
                click.echo(f"{solution.name}: kept{f': {note}' if differs else ''}")
                kept += 1
                continue
            write_whole(path, text)
            click.echo(f"{name}: {solution.name}")
            written += 1
    click.echo(
        f"{count(written, 'Solution')} written, {kept} kept, {count(skipped, 'Definition')} skipped."
    )
    return int(bool(skipped or dataset.problems))
