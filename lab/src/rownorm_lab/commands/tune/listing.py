"""``rownorm tune --list``: the candidates and what their compiled code says. Needs no GPU."""

from __future__ import annotations

from collections import Counter

import click
import torch

from rownorm.inside import in_words

from ...command_line.options import usage_errors
from ...compiled.compile import target_of
from ...data.tables import columns
from ...data.texts import count, percent
from ...data.tunings import TuneRequest
from .candidates import candidates
from .run import studies_of
from .static import compiled

DEFAULT_TARGET = "sm_90"


def run_list(request: TuneRequest, target_name: str | None) -> int:
    """Print the candidates of each study. Return the exit status."""
    name = target_name or ("this" if torch.cuda.is_available() else DEFAULT_TARGET)
    with usage_errors():
        target = target_of(name)
    for study in studies_of(request):
        lines, causes = [], Counter[str]()
        for settings in candidates(study, target.device):
            found = compiled(study, settings, target)
            causes[found.cause or "measured"] += 1
            figures = [str(found.registers), str(found.spills), str(found.programs)]
            verdict = found.why or "would be measured"
            lines.append([in_words(settings), *figures, percent(found.occupancy), verdict])
        click.echo(f"{study.key} on {target.device.name} ({target.device.arch})")
        header = ["candidate", "registers", "spills", "programs", "occupancy", ""]
        click.echo("\n".join(columns(header, lines)))
        measured = causes.pop("measured", 0)
        others = ", ".join(f"{n} {cause}" for cause, n in causes.most_common())
        click.echo(
            f"  {count(measured, 'candidate')} to measure"
            + (f"; left out: {others}" if others else "")
        )
    return 0
