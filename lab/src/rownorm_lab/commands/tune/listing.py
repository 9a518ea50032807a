"""``rownorm tune --list``: the candidates and what their compiled code says. Needs no GPU."""

from __future__ import annotations

from collections import Counter

import click
import torch

from rownorm.inside import in_words

from ...command_line.options import DEFAULT_TARGET, print_json, usage_errors
from ...compiled.compile import target_of
from ...data.tables import wrapped
from ...data.texts import count, percent
from ...data.tunings import TuneRequest
from .candidates import candidates
from .run import studies_of
from .static import compiled

HEADER = ("registers", "spills", "programs", "occupancy", "candidate")


def run_list(request: TuneRequest, target_name: str | None, as_json: bool = False) -> int:
    """Print the candidates of each study, each as soon as it is compiled. Return the exit status."""
    name = target_name or ("this" if torch.cuda.is_available() else DEFAULT_TARGET)
    with usage_errors():
        target = target_of(name)
    documents = []
    for study in studies_of(request):
        causes = Counter[str]()
        listed = list(candidates(study, target.device))
        click.echo(
            f"{study.key} on {target.device.name} ({target.device.arch}): {len(listed)} to compile",
            err=as_json,
        )
        click.echo(f"  {'  '.join(HEADER)}", err=as_json)
        for settings in listed:
            found = compiled(study, settings, target)
            causes[found.cause or "measured"] += 1
            documents.append(
                {"study": study.key, "settings": settings, "target": target.device.arch}
                | found._asdict()
            )
            figures = (found.registers, found.spills, found.programs, percent(found.occupancy))
            cells = [f"{one:>{len(name)}}" for one, name in zip(figures, HEADER, strict=False)]
            left_out = f"; left out: {found.why}" if found.why else ""
            line = f"  {'  '.join(cells)}  {in_words(settings)}{left_out}"
            click.echo(
                "\n".join(wrapped(line, 2 + sum(len(cell) + 2 for cell in cells))), err=as_json
            )
        measured = causes.pop("measured", 0)
        others = ", ".join(f"{n} {cause}" for cause, n in causes.most_common())
        click.echo(
            f"  {count(measured, 'candidate')} to measure"
            + (f"; left out: {others}" if others else ""),
            err=as_json,
        )
    if as_json:
        print_json({"candidates": documents})
    return 0
