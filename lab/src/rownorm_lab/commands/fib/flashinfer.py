"""``rownorm fib export --for-flashinfer`` and ``rownorm fib check --for-flashinfer``."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from ...command_line.options import print_json
from ...data.texts import count
from ...fib.for_flashinfer import COLS, EPS, NOT_SERVED, check, eps_warning, missing, write


def export_for_flashinfer(folder: Path, cols: Sequence[int], eps: float | None) -> None:
    """Write the dataset, and say what it does with eps."""
    value = EPS if eps is None else eps
    names = write(folder, cols or COLS, value)
    click.echo(f"{count(len(names), 'Definition')}, one Solution each: {', '.join(names)}")
    click.echo(f"Left out, because rownorm stores no fp8 and fp4: {', '.join(NOT_SERVED)}")
    quoted = shlex.quote(str(folder))
    click.echo(f"Next: rownorm fib check {quoted} --for-flashinfer, and to use it")
    where = shlex.quote(str(folder.absolute()))
    click.echo(f"FLASHINFER_TRACE_APPLY=1 FLASHINFER_TRACE_APPLY_PATH={where} python app.py")
    click.secho(eps_warning(value), err=True, bold=True)


def check_for_flashinfer(folder: Path, device: str, *, as_json: bool) -> int:
    """Print what FlashInfer does with each Solution; return the exit status. ValueError if it refuses the folder."""
    if why := missing():
        raise ValueError(why)
    results = list(check(folder, device))
    for one in results:
        click.echo(str(one), err=as_json or one.status == "wrong")
    counts = Counter(one.status for one in results)
    said = ", ".join(f"{number} {status}" for status, number in counts.items())
    click.echo(f"{count(len(results), 'Solution')}: {said}.", err=as_json)
    click.secho(
        "WARNING: FlashInfer does not pass the caller's eps to a Solution, except of fused_rmsnorm_silu. Definitions "
        "name the eps that they have in their description.",
        err=True,
        bold=True,
    )
    if as_json:
        print_json({"results": [one._asdict() for one in results], "left_out": []})
    return int(counts["wrong"] > 0 or not counts["applied"])
