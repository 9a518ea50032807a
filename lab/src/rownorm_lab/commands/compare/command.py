"""``rownorm compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...command_line.options import (
    RECORDS,
    examples,
    finite,
    json_option,
    print_json,
    read_or_fail,
    split_names,
    unknown,
    words_aside,
)
from ...data.compare import Outcome, changes, compare, differences
from ...data.statistics import MARGIN
from ...data.tables import wrapped
from .table import compare_table, remarks

NOTHING_DECIDED = 3  # the exit status
FAIL_ON = {"slower": {"slower"}, "unclear": {"slower", "unclear"}, "never": set[str]()}


@click.command(
    "compare",
    epilog=examples(
        "rownorm compare results/main results/branch",
        "rownorm compare results/main results/branch --margin 0.05 --fail-on never",
        "rownorm compare h100.jsonl h200.jsonl --anyway",
    ),
)
@click.argument("base", type=RECORDS)
@click.argument("new", type=RECORDS)
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME",
    help="Providers of the records. Default: rownorm, and your own.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    callback=finite,
    default=MARGIN,
    show_default=True,
    help="A smaller difference counts as the same.",
)
@click.option("--raw", is_flag=True, help="Compare times, not times relative to the ceiling.")
@click.option("--anyway", is_flag=True, help="Compare different devices or methods too.")
@click.option(
    "--fail-on",
    type=click.Choice(list(FAIL_ON)),
    default="slower",
    show_default=True,
    help="What makes the exit status 1; unclear includes slower.",
)
@click.option("--fail-on-suspect", is_flag=True, help="Suspect measurements count for that too.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    base: Path,
    new: Path,
    providers: Sequence[str],
    margin: float,
    raw: bool,
    anyway: bool,
    fail_on: str,
    fail_on_suspect: bool,
    as_json: bool,
) -> None:
    """Say for each case whether NEW is faster than BASE, the same, slower, or whether that is unclear. For CI.

    The confidence of 95% is of the whole comparison: of twenty comparisons of unchanged code, at most one is expected
    to call any case faster or slower. Noise between runs is measured with the ceiling, so measure it in both.

    What is compared is times. Exit status 1 if a case is slower and its measurements are not suspect, or if it was
    measured in BASE and is wrong or fails in NEW; 2 if the two cannot be compared; 3 if every case is unclear.
    """
    old, now = read_or_fail(base).records, read_or_fail(new).records
    own = {one.provider: None for one in [*old, *now] if one.source is not None}
    names = split_names(providers) or ["rownorm", *own]
    known = dict.fromkeys(one.provider for one in [*old, *now])
    for name in split_names(providers):
        if name not in known:
            raise click.BadParameter(unknown("provider", name, known), param_hint="'--provider'")
    if unlike := differences(old, now):
        message = f"{base} and {new} were measured differently: {'; '.join(unlike)}"
        if not anyway:
            raise click.UsageError(f"{message}. To compare them nevertheless: --anyway")
        click.echo(f"Note: {message}", err=as_json)
    if changed := changes(old, now):
        lines = (line for each in changed for line in wrapped(f"  {each}", indent=4))
        click.echo(f"Versions and settings of {base} against {new}:", err=as_json)
        click.echo("\n".join(lines), err=as_json)
    outcome = compare(old, now, providers=names, margin=margin, by_ceiling=not raw)
    if not outcome.comparisons and not outcome.lost:
        raise click.UsageError(
            f"{base} and {new} have no measured case of {', '.join(names)} in common. Two functions are compared "
            "in one run: rownorm bench --provider old.py:rms_norm,new.py:rms_norm"
        )
    with words_aside(as_json):
        _print(outcome, base, new, margin)
    failed = bool(outcome.lost) or any(
        one.verdict in FAIL_ON[fail_on] and (fail_on_suspect or not one.suspect)
        for one in outcome.comparisons
    )
    undecided = all(one.verdict == "unclear" for one in outcome.comparisons)
    if undecided and not failed:
        click.echo(
            "Nothing could be decided: measure again on an idle machine, or with more --rounds",
            err=as_json,
        )
    if as_json:
        print_json(_document(outcome))
    status = 1 if failed else NOTHING_DECIDED if undecided else 0
    context.exit(0 if fail_on == "never" else status)


def _print(outcome: Outcome, base: Path, new: Path, margin: float) -> None:
    """The table, what only one set has, and what the verdicts rest on."""
    for line in compare_table(outcome.comparisons):
        click.echo(line)
    for lost in outcome.lost:
        click.echo("\n".join(wrapped(f"lost: {lost.provider} {lost.case.title}: {lost.why}")))
    for where, keys in ((base, outcome.only_base), (new, outcome.only_new)):
        if keys:
            click.echo(f"{len(keys)} only in {where}")
    for line in remarks(outcome, margin):
        click.echo(line)


def _document(outcome: Outcome) -> dict[str, Any]:
    """What --json prints; docs/json.md has the keys."""
    return {
        "comparisons": [
            {**one._asdict(), "ratio": one.ratio._asdict()} for one in outcome.comparisons
        ],
        "lost": [one._asdict() for one in outcome.lost],
        "only_base": [list(key) for key in outcome.only_base],
        "only_new": [list(key) for key in outcome.only_new],
        "control": outcome.control.provider if outcome.control else None,
    }
