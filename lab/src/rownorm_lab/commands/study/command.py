"""``rownorm study``: the group, and the stages of a model side by side."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...command_line.options import (
    FOLDER,
    SuggestingGroup,
    count_option,
    examples,
    held,
    names_option,
    say_loading,
)
from ...models import SIZES, STAGES, TASKS
from .judged import ABOUT, part_command

if TYPE_CHECKING:
    from ...data.studies import Study

SETTINGS = ("eager", "autocast", "compiled")
STEPS = {"cuda": 20, "cpu": 10}
KERNELS = 5
TITLES = {"llama": "a small Llama", "openfold": "a small OpenFold", "dit": "a small DiT"}


@click.group(
    "study",
    cls=SuggestingGroup,
    epilog=examples(
        "rownorm study llama",
        "rownorm study openfold --size medium --out results/study",
        "rownorm study small --out results/first",
        "rownorm study calls --out results/first",
        "rownorm study cpu --out results/first",
    ),
)
def command() -> None:
    """Measure what norms are worth in training: the stages of three models, two small models, and single calls.

    rownorm report FOLDER shows what a study has written.
    """


def stages_command(task: str) -> click.Command:
    """``rownorm study TASK``: the stages of a model."""

    @click.command(
        task,
        short_help=f"The stages of {TITLES[task]} side by side.",
        epilog=examples(
            f"rownorm study {task}",
            f"rownorm study {task} --size medium --out results/study",
            f"rownorm study {task} --setting eager,compiled --stage fused,rownorm --steps 50",
            f"rownorm study {task} --out results/study --resume --publish docs/results",
        ),
    )
    @click.option(
        "--size", type=click.Choice(SIZES), help="Default: medium on a GPU, tiny on a CPU."
    )
    @names_option(
        "--stage",
        "stages",
        what="stage",
        known=STAGES,
        help=f"{', '.join(STAGES)}. Default: all.",
    )
    @names_option(
        "--setting",
        "settings",
        what="setting",
        known=SETTINGS,
        help=f"{', '.join(SETTINGS)}. Default: all; on a CPU, eager.",
    )
    @count_option(
        "--steps",
        "n_steps",
        help=f"Steps to time, of each stage. Default: {STEPS['cuda']}; on a CPU, {STEPS['cpu']}.",
    )
    @count_option(
        "--samples",
        help="Samples in a step. Default: of the size. More of them keep a GPU busy whose host is slow.",
    )
    @click.option(
        "--out",
        type=FOLDER,
        help=f"Where study-{task}.json is written. Default: results/DATE-TIME.",
    )
    @click.option("--resume", is_flag=True, help="Continue the study in --out.")
    @click.option("--publish", type=FOLDER, help=f"Write study-{task}.md into this folder as well.")
    @count_option("--kernels", default=KERNELS, least=0, help="Lines of each table of kernels.")
    @click.option(
        "--json", "as_json", is_flag=True, help="Print the study as JSON instead of tables."
    )
    @click.pass_context
    def stages(context: click.Context, /, **given: Any) -> None:
        """Measure training steps of a model in its stages, side by side: time, memory, and the share of norms.

        The stages are baseline (PyTorch op by op), fused (what good PyTorch does) and rownorm. The settings are eager
        (bf16 on a GPU, fp32 on a CPU), autocast (fp32 parameters, bf16 arithmetic) and compiled (the repeated blocks
        through torch.compile). Stages take turns, step by step, in one process. rownorm report FOLDER shows the study.

        The study is written after every stage, so Ctrl-C keeps what was measured; --resume --out FOLDER continues it,
        with its size, steps and samples. Exit status 1 if a stage failed or is wrong.
        """
        context.exit(_study(context, task, **given))

    return stages


for one in TASKS:
    command.add_command(stages_command(one))
for one in ABOUT:
    command.add_command(part_command(one))


def _study(
    context: click.Context,
    task: str,
    *,
    size: str | None,
    stages: Sequence[str],
    settings: Sequence[str],
    n_steps: int | None,
    samples: int | None,
    out: Path | None,
    resume: bool,
    publish: Path | None,
    kernels: int,
    as_json: bool,
) -> int:
    """Measure a study or resume one, show and publish it; returns the exit status."""
    say_loading()
    import torch

    from ...data.files import json_text
    from ...data.runs import new_name
    from ...data.studies import file_of, write_study
    from ...page.study import write_plot  # early: it may lack a package
    from .measure import new_study
    from .publish import publish as write_page

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if resume and out is None:
        raise click.UsageError("--resume needs the folder of the study: --out FOLDER")
    folder = out or new_name()
    file = file_of(folder, task)
    context.with_resource(held(folder))  # first: a folder that cannot be written is found at once
    if resume:
        study = _resumed(file, {"size": size, "steps": n_steps, "samples": samples})
    else:
        if file.exists():
            raise click.UsageError(
                f"{file} exists; continue it with --resume, or name another --out"
            )
        usual = "medium" if device == "cuda" else "tiny"
        study = new_study(task, size or usual, n_steps or STEPS[device], samples)
    # Of a study that is resumed, at least those that it has.
    usual_settings = study.settings or (SETTINGS if device == "cuda" else ("eager",))
    chosen = [one for one in SETTINGS if one in (settings or usual_settings)]
    try:
        ordered = [one for one in STAGES if one in (stages or STAGES)]
        write_study(folder, study)  # before anything is timed: Ctrl-C leaves a study to resume
        study = _measured(study, folder, chosen, ordered)
    except KeyboardInterrupt:
        click.echo(
            "Interrupted. What was measured is kept: "
            f"--resume --out {shlex.quote(str(folder))} continues.",
            err=True,
        )
        return 130
    write_study(folder, study)
    if as_json:
        click.echo(json_text(study))
    else:
        _show(study, kernels)
        if not settings and study.environment.kind == "cpu":
            click.echo("autocast and compiled are left out on a CPU; --setting asks for them.")
    written = [file, write_plot(study, folder)]
    written += [write_page(study, publish)] if publish else []
    for one in filter(None, written):
        click.echo(f"wrote {one}", err=True)
    return int(any(one.status != "ok" for one in study.records))


def _resumed(file: Path, asked: dict[str, Any]) -> Study:
    """The study in ``file``; a usage error if it cannot be read, or is another one than asked for.

    asked: values of its fields; None: any.
    """
    from ...data.studies import read_study

    try:
        study = read_study(file)
    except ValueError as error:
        raise click.UsageError(f"{error}; without --resume a new study begins") from None
    for name, given in asked.items():
        before = getattr(study, name)
        if given not in (None, before):
            raise click.UsageError(f"{file} has {name} {before}, not {given}; name another --out")
    return study


def _measured(study: Study, folder: Path, settings: Sequence[str], stages: Sequence[Any]) -> Study:
    """The study with the records of these settings and stages; written after each."""
    from ...data.studies import is_measured, write_study
    from ...device.environment import environment
    from .measure import measure

    left = [setting for setting in settings if not is_measured(study, setting, stages)]
    if left and study.records and environment() != study.environment:
        raise click.UsageError(
            f"the study was begun on {study.environment.describe()}; "
            f"this is {environment().describe()}. Begin a new one with another --out"
        )
    for setting in left:
        for record in measure(study, setting, stages, lambda step: click.echo(step, err=True)):
            study = study.with_record(record)
            write_study(folder, study)
    return study


def _show(study: Study, kernels: int) -> None:
    """The tables of a study."""
    from ...data.study_tables import comparison_table, failures, kernel_tables, notes, step_tables
    from ...data.tables import table_text, wrapped

    for head in (
        f"{study.title}; {study.steps} steps of each stage",
        f"{study.environment.describe()}, {study.date}",
    ):
        click.echo("\n".join(wrapped(head)))
    tables = [*step_tables(study), comparison_table(study)]
    tables += kernel_tables(study, kernels) if kernels else []
    for table in tables:
        if table.lines:
            click.echo(table_text(table))
    click.echo("")
    for line in (*failures(study), *notes(study)):
        click.echo("\n".join(wrapped(line)))
