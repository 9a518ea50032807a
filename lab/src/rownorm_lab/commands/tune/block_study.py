"""``rownorm tune --study``: time and bandwidth against block size, and what fusion saves.

The kernel is the plain one that loops over a row in blocks; rownorm's plan stands beside it. Without a GPU all figures
are predicted from compiled code.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from ...command_line.blocks import ELEMENTS, block_sizes
from ...command_line.options import refuse_taken
from ...compiled.analysis import analyze
from ...compiled.compile import compile_case, compile_loop, target_of
from ...compiled.measured import measured
from ...data import tuning_tables as figures
from ...data import tunings as saved
from ...data.analyses import Analysis
from ...data.case import Case
from ...data.tunings import STUDY, BlockStudy
from ...measure.bench import in_one_line
from . import fusion

DEFAULT_TARGET = "sm_90"


def run_study(
    widths: Sequence[int],
    operations: Sequence[str],
    dtypes: Sequence[str],
    blocks: str,
    target_name: str | None,
    out: Path | None,
) -> int:
    """Study every operation, dtype and width. Return the exit status: 1 if a kernel cannot be compiled."""
    if out is not None:
        refuse_taken(out)
    measure = target_name is None and torch.cuda.is_available()
    try:
        target = target_of("this" if measure else target_name or DEFAULT_TARGET)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    found, fusions, failures = list[list[Analysis]](), list[saved.Fusion](), list[str]()
    for case in _cases(widths or (4096,), operations or ("rms_norm",), dtypes or ("bf16",)):
        analyses = []
        for block in (None, *block_sizes(blocks, case)):
            try:
                one = compile_loop(case, block, target) if block else compile_case(case, target)
                analyses.append(analyze(one, block))
            except Exception as error:  # of the compiler, whatever its type
                failures.append(
                    f"block {block}: {in_one_line(error)}" if block else in_one_line(error)
                )
        if analyses:
            found.append(measured(analyses) if measure else analyses)
            click.echo("\n".join(figures.blocks_text(found[-1])))
        fusions.append(fusion.fusion_of(case, target, measure))
        click.echo("\n".join(["", *figures.fusion_text(fusions[-1]), ""]))
    if out is not None:
        date = datetime.date.today().isoformat()
        content = BlockStudy(date=date, blocks=found, fusions=fusions)
        click.echo(f"wrote {saved.write(out, STUDY, content)}\nNext: rownorm report {out}")
    for failure in failures:
        click.echo(f"Error: {failure}", err=True)
    return 1 if failures else 0


def _cases(widths: Sequence[int], operations: Sequence[str], dtypes: Sequence[str]) -> list[Case]:
    return [
        Case(operation=operation, rows=max(1, ELEMENTS // cols), cols=cols, dtype=dtype)  # type: ignore[arg-type]
        for operation in operations
        for dtype in dtypes
        for cols in widths
    ]
