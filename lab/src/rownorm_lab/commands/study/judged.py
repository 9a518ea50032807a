"""``rownorm study small``, ``calls`` and ``cpu``: the studies whose figures have bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...command_line.options import EXISTING_FOLDER, FOLDER, Decorator, examples

if TYPE_CHECKING:
    from ...data.judged import CallRecord, JudgedStudy, StepRecord

STEPS = 30  # of each kind of norms
ON_CPU = ("cpu",)  # studies that need no GPU


class Work(NamedTuple):
    """What a run measures: (what it is, a function that measures it) of every record."""

    conditions: str
    records: Sequence[tuple[str, Callable[[], StepRecord | CallRecord]]]


def run_options(name: str, tiny: str) -> Decorator:
    """The options that all of these studies have. tiny: what --tiny changes."""
    also = "" if name in ON_CPU else ", also on a CPU"
    added: list[Decorator] = [
        click.option(
            "--out",
            type=FOLDER,
            help=f"Where study-{name}.json is written. Default: results/DATE-TIME.",
        ),
        click.option(
            "--read",
            "read",
            type=EXISTING_FOLDER,
            multiple=True,
            help="Measure nothing; show the run in this folder. Repeat it for several runs.",
        ),
        click.option(
            "--publish", type=FOLDER, help=f"Write study-{name}.md into this folder as well."
        ),
        click.option("--tiny", is_flag=True, help=f"{tiny}: a trial run{also}."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print a list of the runs as JSON, no table."
        ),
    ]

    def add(command: Decorator) -> Decorator:
        for option in reversed(added):
            command = option(command)
        return command

    return add


@click.command(
    short_help="Training steps of two small models, with bars.",
    epilog=examples(
        "rownorm study small --out results/first",
        "rownorm study small --steps 100",
        "rownorm study small --read results/first --read results/second --publish docs/results",
    ),
)
@click.option(
    "--steps",
    "n_steps",
    type=click.IntRange(min=1),
    help=f"Steps of each kind of norms. Default: {STEPS}.",
)
@run_options("small", "Tiny models, nothing is judged")
@click.pass_context
def small(context: click.Context, /, n_steps: int | None, **given: Any) -> None:
    """Time training steps of two small models with torch's norms, rownorm's, and rownorm's with the residual add.

    The models are like Llama (RMSNorm) and GPT-2 (LayerNorm). Each setting is one in which people train: bf16,
    autocast, a default device. A step is forward and backward. Each speed beside torch's norms has a bar; the bars
    must hold in two runs.

    The file is written after every record, so Ctrl-C keeps what was measured. rownorm report FOLDER shows it. Exit
    status 1 if a speed is below its bar or a run is incomplete.
    """

    def work(device: str) -> Work:
        from .small import all_steps, conditions, measure

        steps, tiny = n_steps or STEPS, given["tiny"]
        return Work(
            conditions(steps, tiny),
            [
                (f"{kind}, {setting.name}", partial(measure, kind, setting, steps, device, tiny))
                for kind, setting in all_steps()
            ],
        )

    context.exit(_run("small", work, uses=["--steps"] if n_steps else [], **given))


@click.command(
    short_help="Host cost of one eager call in every setting, with bars.",
    epilog=examples(
        "rownorm study calls --out results/first",
        "rownorm study calls --tiny",
        "rownorm study calls --read results/first --read results/second --publish docs/results",
    ),
)
@run_options("calls", "Nothing is judged")
@click.pass_context
def calls(context: click.Context, /, **given: Any) -> None:
    """Time what one eager call costs the host, rownorm's and torch's, forward alone and with backward.

    Each setting is one in which people call a norm: plain, autocast, a default device, a profiler, hooks on saved
    tensors, inference mode, checkpoints, modules. Each cost beside torch's has a bar; the bars must hold in two runs.

    The file is written after every record, so Ctrl-C keeps what was measured. rownorm report FOLDER shows it. Exit
    status 1 if a cost is above its bar or a run is incomplete.
    """

    def work(device: str) -> Work:
        from .calls import all_calls, conditions, measure

        return Work(
            conditions(),
            [
                (
                    f"{norm}, {direction}, {setting}",
                    partial(measure, norm, setting, direction, device),
                )
                for norm, setting, direction in all_calls()
            ],
        )

    context.exit(_run("calls", work, uses=[], **given))


@click.command(
    short_help="Norms of tensors on a CPU, with bars.",
    epilog=examples(
        "rownorm study cpu --out results/first",
        "rownorm study cpu --tiny",
        "rownorm study cpu --read results/first --read results/second --publish docs/results",
    ),
)
@run_options("cpu", "Nothing is judged")
@click.pass_context
def cpu(context: click.Context, /, **given: Any) -> None:
    """Time norms of tensors on a CPU, rownorm's and torch's, forward alone and with backward, with 1 and 2 threads.

    The norms are LayerNorm and RMSNorm, each with a residual add and without, in fp32 and bf16. Each cost beside
    torch's has a bar; the bars must hold in two runs. Nothing else should run on the machine.

    The file is written after every record, so Ctrl-C keeps what was measured. rownorm report FOLDER shows it. Exit
    status 1 if a cost is above its bar or a run is incomplete.
    """

    def work(device: str) -> Work:
        from .cpu import all_settings, conditions, measure

        return Work(
            conditions(),
            [(f"{one.case.kind}, {one.name}", partial(measure, one)) for one in all_settings()],
        )

    context.exit(_run("cpu", work, uses=[], **given))


def _run(
    name: str,
    work: Callable[[str], Work],
    *,
    uses: Sequence[str],
    out: Path | None,
    read: Sequence[Path],
    publish: Path | None,
    tiny: bool,
    as_json: bool,
) -> int:
    """Measure a run or read several, show and publish them; returns the exit status."""
    if read:
        given = [*uses, *(["--out"] if out else []), *(["--tiny"] if tiny else [])]
        if given:
            raise click.UsageError(f"--read measures nothing; it does not use {given[0]}")
        runs, interrupted = _read(name, read), False
    else:
        run, interrupted = _measured(name, work, out, tiny)
        runs = [run]
    _show(runs, as_json)
    if interrupted:
        return 130
    if publish:
        from .publish import publish_judged

        click.echo(f"wrote {publish_judged(runs, publish)}", err=True)
    return int(not all(run.holds for run in runs))


def _read(name: str, folders: Iterable[Path]) -> list[JudgedStudy]:
    """The runs of these folders; a usage error if one cannot be read or they do not belong together."""
    from ...data.judged import file_of, read_judged, refuse_mixed

    try:
        runs = [read_judged(file_of(folder, name)) for folder in folders]
        refuse_mixed(runs)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return runs


def _measured(
    name: str, work: Callable[[str], Work], out: Path | None, tiny: bool
) -> tuple[JudgedStudy, bool]:
    """(the run, whether it was interrupted). Its file is written after every record."""
    import torch

    from ...data.judged import file_of, new_judged, write_judged
    from ...data.runs import new_name
    from ...device.environment import cpu_environment, environment

    device = "cuda" if torch.cuda.is_available() and name not in ON_CPU else "cpu"
    if device == "cpu" and not tiny and name not in ON_CPU:
        raise click.UsageError(
            f"torch sees no GPU; rownorm study {name} --tiny tries the command on the CPU"
        )
    folder = out or new_name()
    file = file_of(folder, name)
    if file.exists():
        raise click.UsageError(f"{file} exists; name another --out")
    conditions, records = work(device)
    here = cpu_environment() if name in ON_CPU else environment()
    run = new_judged(name, here, conditions, trial=tiny, planned=len(records))
    try:
        for what, measure in records:
            click.echo(what, err=True)
            run = run.with_record(measure())
            write_judged(folder, run)
    except KeyboardInterrupt:
        kept = f"{file} keeps what was measured" if run.records else "Nothing was measured"
        click.echo(f"Interrupted. {kept}.", err=True)
        return run, True
    click.echo(f"wrote {file}", err=True)
    return run, False


def _show(runs: Sequence[JudgedStudy], as_json: bool) -> None:
    """The runs in the terminal."""
    import msgspec

    from ...data.judged_tables import figure_table, run_lines, summary
    from ...data.tables import columns, wrapped

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(runs), indent=1))
        return
    table = figure_table(runs)
    click.echo(f"{table.title}; {runs[0].conditions}")
    click.echo("\n".join((*run_lines(runs), "", *columns(table.header, table.lines), "")))
    click.echo("\n".join((*wrapped(runs[0].note), *wrapped(summary(runs)))))
