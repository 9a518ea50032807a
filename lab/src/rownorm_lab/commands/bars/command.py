"""``rownorm bars``: measure, judge, publish."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...command_line.options import FOLDER, SuggestingGroup, examples, names_option
from . import bars

if TYPE_CHECKING:
    from .judge import Run

RUNS = 2  # complete runs in which every bar must hold


@click.group(
    "bars",
    cls=SuggestingGroup,
    epilog=examples(
        "rownorm bars measure --out results/first --workers 16",
        "rownorm bars measure --out results/second",
        "rownorm bars judge results/first results/second",
        "rownorm bars publish results/first results/second --out docs/results",
    ),
)
def command() -> None:
    """Measure and judge the figures that must hold on an H200.

    The bars are data in rownorm_lab/commands/bars/bars.py. Measure two complete runs, judge them, publish them.
    """


@command.command(
    epilog=examples(
        "rownorm bars measure --out results/first --workers 16",
        "rownorm bars measure --out results/quick --part bf16,host --provider rownorm,ceiling",
        "rownorm bars measure --out results/first --limit-s 500",
    )
)
@click.option(
    "--out", type=FOLDER, required=True, help="The run folder; an existing run is resumed."
)
@names_option(
    "--part",
    "parts",
    what="part",
    known=bars.NAMES,
    help=f"{', '.join(bars.NAMES)}. Default: all.",
)
@names_option(
    "--provider",
    "providers",
    what="provider",
    known=bars.PROVIDERS,
    help=f"{', '.join(bars.PROVIDERS)}. Those named must be installed. Default: all of a part that are.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Rounds for each case.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=0,
    help="Processes that compile first and fill the caches on disk, one per core. Default: none.",
)
@click.option(
    "--limit-s",
    type=click.IntRange(min=1),
    default=None,
    metavar="SECONDS",
    help="Start no case after this time; exit status 3 if some are left.",
)
@click.pass_context
def measure(
    context: click.Context,
    /,
    out: Path,
    parts: Sequence[str],
    providers: Sequence[str],
    rounds: int,
    workers: int,
    limit_s: int | None,
) -> None:
    """Measure the cases of the bars into a run folder, or resume it.

    Every provider is tried with a small call first. If one is installed and does not work, nothing is measured.

    Exit status 1 if something could not be measured, 3 if the time limit left cases.
    """
    import torch

    from ...data.runs import records_in
    from .measure import (
        ProviderMissing,
        check_folder,
        check_providers,
        count_first_calls,
        unfinished,
    )
    from .measure import measure as measure_jobs

    try:
        check_folder(out)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    chosen = parts or bars.NAMES
    until, status = time.monotonic() + (limit_s or math.inf), 0
    selected = [part for part in bars.PARTS if part.name in chosen]
    jobs = bars.jobs_of(selected, providers or bars.PROVIDERS)
    try:
        check_providers(unfinished(jobs, records_in(out)), required=providers)
        if bars.FIRST_CALL.name in chosen:
            try:
                if not torch.cuda.is_available():
                    raise RuntimeError("it needs a GPU")
                count_first_calls(out, bars.FIRST_CALL.calls)
            except RuntimeError as error:
                status = 1
                click.echo(f"{bars.FIRST_CALL.name} was not measured: {error}", err=True)
        left = measure_jobs(out, jobs, rounds, workers, until, required=providers)
    except ProviderMissing as error:
        click.echo(f"Stopped: {error}", err=True)
        context.exit(1)
    except KeyboardInterrupt:
        click.echo(
            "Interrupted. What was measured is kept; the same command resumes the run.", err=True
        )
        context.exit(130)
    if left:
        click.echo(
            f"Stopped after {limit_s} s, {left} cases are left; the same command resumes the run."
        )
        context.exit(3)
    click.echo(f"Next: rownorm bars judge {out}")
    context.exit(status)


@command.command(
    epilog=examples(
        "rownorm bars judge results/first results/second",
        "rownorm bars judge results/first --runs 1",
    )
)
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@click.option(
    "--runs",
    "required",
    type=click.IntRange(min=1),
    default=RUNS,
    show_default=True,
    help="How many complete runs are required.",
)
@click.pass_context
def judge(context: click.Context, /, folders: Sequence[Path], required: int) -> None:
    """Judge the runs in FOLDERS against the bars.

    Exit status 0 only if every bar holds in every run, nothing is missing, and there are enough runs.
    """
    from .judge import findings_of
    from .tables import run_tables, summary

    runs = _read_runs(folders)
    for run in runs:
        click.echo("\n".join(run_tables(run, bars.PARTS, bars.FIRST_CALL)))
    found = [findings_of(run, bars.PARTS, bars.FIRST_CALL) for run in runs]
    click.echo("\n".join(summary(found)))
    enough = len(runs) >= required
    if not enough:
        click.echo(
            f"{required} runs are required, {len(runs)} given; --runs {len(runs)} accepts fewer."
        )
    context.exit(int(not enough or not all(one.holds for of_run in found for one in of_run)))


@command.command(
    epilog=examples(
        "rownorm bars publish results/first results/second --out docs/results",
        "rownorm bars publish results/first results/second --out docs/results --package",
    )
)
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@click.option("--out", type=FOLDER, required=True, help="Folder of the pages; pages are replaced.")
@click.option(
    "--package", is_flag=True, help="Write the data file into the rownorm package instead."
)
def publish(folders: Sequence[Path], out: Path, package: bool) -> None:
    """Write runs as Markdown pages and a data file.

    One page per part shows the figures of the first of the FOLDERS; an index page has the bars with the worst case of
    each run.
    """
    from rownorm.inside import tables

    from .publish import publish as write_pages

    runs = _read_runs(folders)
    arch = next((record.environment.arch for run in runs for record in run.records), "")
    try:
        files = write_pages(runs, out, package=package, table=tables.shipped_file(arch))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for file in files:
        click.echo(f"{file} ({file.stat().st_size / 1024:.0f} KiB)")


def _read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of these folders; damaged lines are printed."""
    from .judge import read_run

    try:
        runs = [read_run(folder) for folder in folders]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for run in runs:
        for number, reason in run.damaged:
            click.echo(f"{run.name}: line {number} cannot be used: {reason}", err=True)
    return runs
