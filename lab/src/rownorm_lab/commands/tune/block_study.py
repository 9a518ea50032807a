"""``rownorm tune --study``: time and bandwidth against block size, and what fusion saves.

The block sizes are those of ``rownorm analyze --blocks``, of several cases, and timed where there is a GPU. Without one
all figures are predicted from compiled code.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import torch

from ...command_line.blocks import ELEMENTS, block_sizes
from ...command_line.options import DEFAULT_TARGET, print_json, usage_errors
from ...compiled.analysis import analyses_of
from ...compiled.compile import target_of
from ...data.analyses import Analysis
from ...data.analyses import write as write_analyses
from ...data.analysis_tables import text_of
from ...data.suites import grid
from ...data.tuning_tables import fusion_text
from ...data.tunings import STUDY, Fusion, FusionStudy, write
from . import fusion


def run_study(
    widths: Sequence[int],
    operations: Sequence[str],
    dtypes: Sequence[str],
    blocks: str,
    target_name: str | None,
    out: Path | None,
    as_json: bool = False,
) -> int:
    """Study every operation, dtype and width. Return the exit status: 1 if a kernel cannot be compiled."""
    measure = target_name is None and torch.cuda.is_available()
    with usage_errors():
        target = target_of("this" if measure else target_name or DEFAULT_TARGET)
    analyses, fusions, failures = list[Analysis](), list[Fusion](), list[str]()
    click.echo(f"compiling for {target.device.name}", err=True)
    shapes = [(max(1, ELEMENTS // cols), cols) for cols in widths or (4096,)]
    for case in grid(operations or ["rms_norm"], ["forward"], dtypes or ["bf16"], shapes):  # type: ignore[arg-type]
        found, failed = analyses_of(case, target, block_sizes(blocks, case), measure=measure)
        analyses, failures = analyses + found, failures + failed
        if found:
            click.echo("\n".join(text_of(found)), err=as_json)
        fusions.append(fusion.fusion_of(case, target, measure))
        click.echo("\n".join(["", *fusion_text(fusions[-1]), ""]), err=as_json)
    if as_json:
        print_json({"analyses": analyses, "fusions": fusions})
    if out is not None:
        write_analyses(out, analyses)
        written = write(out, STUDY, FusionStudy(fusions=fusions))
        click.echo(f"wrote {written}\nNext: rownorm report {shlex.quote(str(out))}", err=as_json)
    for failure in failures:
        click.echo(f"Error: {failure}", err=True)
    return 1 if failures else 0
