"""``rownorm bars``: measure, judge, publish."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...command_line.options import (
    FOLDER,
    SuggestingGroup,
    count_option,
    examples,
    held,
    names_option,
    refuse_in_use,
    usage_errors,
)
from ...data.texts import listed
from . import bars

if TYPE_CHECKING:
    from .judge import Run

RUNS = 2  # complete runs in which every bar must hold
part_option = names_option(
    "--part",
    "parts",
    what="part",
    known=bars.NAMES,
    help=f"{', '.join(bars.NAMES)}. Default: all but draw and cpu. draw is judged and published where a run has it.",
)
tiny_option = click.option(
    "--tiny",
    is_flag=True,
    help="Tiny cases of draw and of the parts with settings: a trial, also without a GPU. It is not judged.",
)


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
        "rownorm bars measure --out results/first --part draw --workers 16",
        "rownorm bars measure --out results/cpu --part cpu",
    )
)
@click.option(
    "--out", type=FOLDER, required=True, help="The run folder; an existing run is resumed."
)
@part_option
@tiny_option
@names_option(
    "--provider",
    "providers",
    what="provider",
    known=bars.PROVIDERS,
    help=f"{', '.join(bars.PROVIDERS)}. Those named must be installed. Default: all of a part that are.",
)
@count_option(
    "--rounds", help="Rounds for each case. Default: 10; of calls 25, of small 30, of cpu 41."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=None,
    help="Seed of draw. Default: that of the run, else a fresh one, which is printed and kept in the run folder.",
)
@count_option(
    "--workers",
    default=0,
    least=0,
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
    tiny: bool,
    providers: Sequence[str],
    rounds: int | None,
    seed: int | None,
    workers: int,
    limit_s: int | None,
) -> None:
    """Measure the cases of the bars into a run folder, or resume it.

    draw measures 32 widths that its seed picks, 160 cases. It is no default, because most of them must be compiled anew
    in each run, which takes minutes.

    Every provider is tried with a small call first. If one is installed and does not work, nothing is measured.

    Exit status 1 if something could not be measured, 3 if the time limit left cases.
    """
    import torch

    from ...data.runs import records_in
    from . import draw
    from .measure import (
        ProviderMissing,
        check_folder,
        check_providers,
        count_first_calls,
        unfinished,
    )
    from .measure import measure as measure_jobs

    selected, first_call = bars.chosen(parts, tiny)
    names = [part.name for part in selected]
    on_cpu = bars.CPU.name in names
    if on_cpu and len(names) > 1:
        raise click.UsageError("cpu is measured alone, into a folder of its own")
    is_drawn = any(part.is_drawn for part in selected)
    if seed is not None and not is_drawn:
        raise click.UsageError("--seed is that of the part draw; add --part draw")
    refuse_in_use(out)
    with usage_errors():
        check_folder(out, on_cpu)
        if is_drawn:
            seed = draw.seed_for(out, seed)
            selected = [part.of_seed(seed) for part in selected]
    needs_gpu = [part.name for part in selected if part.has_trial and not part.is_trial]
    if needs_gpu and not on_cpu and not torch.cuda.is_available():
        raise click.UsageError(
            f"torch sees no GPU, and {listed(needs_gpu)} cannot be measured without one. --tiny tries "
            f"{'it' if len(needs_gpu) == 1 else 'them'} on the CPU. The part cpu needs no GPU"
        )
    context.with_resource(held(out))
    until, status = time.monotonic() + (limit_s or math.inf), 0
    jobs = bars.jobs_of(selected, providers or bars.PROVIDERS)
    try:
        check_providers(unfinished(jobs, records_in(out)), required=providers)
        if seed is not None:
            draw.write_seed(out, seed)
            click.echo(f"The seed of the draw is {seed}.")
        if first_call.calls:
            try:
                if not torch.cuda.is_available():
                    raise RuntimeError("it needs a GPU")
                count_first_calls(out, first_call.calls)
            except RuntimeError as error:
                status = 1
                click.echo(f"{first_call.name} was not measured: {error}", err=True)
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
@count_option("--runs", "required", default=RUNS, help="How many complete runs are required.")
@part_option
@tiny_option
@click.option("--json", "as_json", is_flag=True, help="Print every finding of every run as JSON.")
@click.pass_context
def judge(
    context: click.Context,
    /,
    folders: Sequence[Path],
    required: int,
    parts: Sequence[str],
    tiny: bool,
    as_json: bool,
) -> None:
    """Judge the runs in FOLDERS against the bars.

    Exit status 0 only if every bar holds in every run, nothing is missing, and there are enough runs.
    """
    from ...data.files import json_text
    from .judge import findings_of
    from .tables import run_tables, summary

    runs = _read_runs(folders)
    chosen = bars.chosen(parts, tiny, drawn=any(run.seed is not None for run in runs))
    found = [findings_of(run, *chosen) for run in runs]
    if as_json:
        dictionaries = [[one._asdict() for one in of_run] for of_run in found]
        click.echo(json_text(dictionaries))
    else:
        for run in runs:
            click.echo("\n".join(run_tables(run, *chosen)))
        click.echo("A trial: nothing is judged." if tiny else "\n".join(summary(found)))
    enough = len(runs) >= required
    if not enough:
        click.echo(
            f"{required} runs are required, {len(runs)} given; --runs {len(runs)} accepts fewer.",
            err=as_json,
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
@part_option
@click.option(
    "--package", is_flag=True, help="Write the data file into the rownorm-lab package instead."
)
def publish(folders: Sequence[Path], out: Path, parts: Sequence[str], package: bool) -> None:
    """Write runs as Markdown pages and a data file.

    One page per part shows the figures of the first of the FOLDERS; an index page has the bars with the worst case of
    each run. With --part, the pages of these parts are written, and nothing else.
    """
    from rownorm.inside import tables

    from .publish import publish as write_pages

    runs = _read_runs(folders)
    arch = next((record.environment.arch for run in runs for record in run.records), "")
    with usage_errors():
        selected = bars.chosen(parts)[0] if parts else None
        files = write_pages(
            runs, out, parts=selected, package=package, table=tables.shipped_file(arch)
        )
    for file in files:
        click.echo(f"{file} ({file.stat().st_size / 1024:.0f} KiB)")


def _read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of these folders; damaged lines are printed."""
    from .judge import read_run

    with usage_errors():
        runs = [read_run(folder) for folder in folders]
    for run in runs:
        for number, reason in run.damaged:
            click.echo(f"{run.name}: line {number} cannot be used: {reason}", err=True)
    return runs
