"""``rownorm compare``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from ..cli.options import RECORDS, chosen_providers, examples, provider_option, read_or_fail
from ..results.compare import Comparison, compare, differences
from ..results.statistics import MARGIN

FAIL_ON = {"slower": {"slower"}, "unclear": {"slower", "unclear"}, "never": set[str]()}


def _finite(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to compare with", context, parameter)
    return value


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
@provider_option("rownorm")
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    callback=_finite,
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
) -> None:
    """Say for each case whether NEW is faster than BASE, the same, slower, or whether that is unclear. For CI.

    Exit status 1 if a case is slower, or was measured in BASE and is wrong or fails in NEW; 2 if the two cannot be
    compared.
    """
    names = chosen_providers(providers, default=["rownorm"])
    old, now = read_or_fail(base).records, read_or_fail(new).records
    if unlike := differences(old, now):
        message = f"{base} and {new} were measured differently: {'; '.join(unlike)}"
        if not anyway:
            raise click.UsageError(f"{message}. To compare them nevertheless: --anyway")
        click.echo(f"Note: {message}")
    outcome = compare(old, now, providers=names, margin=margin, by_ceiling=not raw)
    if not outcome.comparisons and not outcome.lost:
        raise click.UsageError(
            f"{base} and {new} have no measured case of {', '.join(names)} in common"
        )
    if outcome.comparisons:
        click.echo("\n".join(compare_table(outcome.comparisons)))
    for lost in outcome.lost:
        click.echo(f"lost: {lost.provider} {lost.case.title}: {lost.why}")
    for where, keys in ((base, outcome.only_base), (new, outcome.only_new)):
        if keys:
            click.echo(f"{len(keys)} only in {where}")
    by = quantity(outcome.comparisons)
    click.echo(f"\n{counts(outcome.comparisons)} (by {by}, margin {margin:.0%})")
    failed = outcome.lost or any(one.verdict in FAIL_ON[fail_on] for one in outcome.comparisons)
    context.exit(int(bool(failed) and fail_on != "never"))


def compare_table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A line for each case that both sets have."""
    width = max(len(one.case.title) for one in comparisons)
    yield f"{'':{width}}  {'provider':14}{'new / base':>11}   {'95% interval':16} verdict"
    for one in comparisons:
        interval = f"{one.ratio.low:.3f} to {one.ratio.high:.3f}"
        yield (
            f"{one.case.title:{width}}  {one.provider:14}{one.ratio.ratio:>11.3f}   {interval:16} "
            f"{one.verdict}"
        )


def counts(comparisons: Sequence[Comparison]) -> str:
    """How many are faster, the same, slower and unclear."""
    counted = Counter(one.verdict for one in comparisons)
    return ", ".join(f"{counted[name]} {name}" for name in ("faster", "same", "slower", "unclear"))


def quantity(comparisons: Sequence[Comparison]) -> str:
    """Which quantity was compared, in words."""
    relative = sum(one.by_ceiling for one in comparisons)
    if relative == 0:
        return "times"
    others = len(comparisons) - relative
    return "times relative to the ceiling of their round" + (
        f", {others} by times" if others else ""
    )
