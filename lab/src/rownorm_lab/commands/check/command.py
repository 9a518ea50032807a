"""``rownorm check``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ...command_line.options import (
    ALL_PROVIDERS,
    case_options,
    chosen_providers,
    examples,
    json_option,
    names_option,
    print_json,
    provider_option,
    say_loading,
)
from ...data.case import DATA_SETS, DTYPES, FORMS

if TYPE_CHECKING:
    from ...measure.check import CheckResult


@click.command(
    "check",
    epilog=examples(
        "rownorm check",
        "rownorm check --quick",
        "rownorm check --op rms_norm,layer_norm --dtype bf16 --provider rownorm,torch",
        "rownorm check --data offset,near_eps",
        "rownorm check --form gate,gate_first --op rms_norm",
        "rownorm check --provider my_norm.py:rms_norm",
    ),
)
@case_options(operations="all", directions="forward and backward", dtypes="all")
@names_option(
    "--data",
    "data_sets",
    what="data set",
    known=list(DATA_SETS),
    help=f"{', '.join(DATA_SETS)}. Default: all for plain norms, normal for other forms.",
)
@names_option(
    "--form",
    "forms",
    what="form",
    known=list(FORMS),
    help=f"{', '.join(FORMS)}. Default: all; with --quick plain.",
)
@provider_option(ALL_PROVIDERS)
@click.option(
    "--quick",
    is_flag=True,
    help="rownorm and torch, bf16 and fp32, the hardest data; the worst result of each dtype.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    data_sets: Sequence[str],
    forms: Sequence[str],
    providers: Sequence[str],
    quick: bool,
    as_json: bool,
) -> None:
    """Measure errors against fp64 for every provider, operation, form, pass, dtype and hard data set.

    An ulp is one step of the output's dtype. Without a GPU the kernels are checked in Triton's interpreter.

    --provider FILE.py:function checks a function of yours; docs/own-kernel.md explains it.

    Exit status 1 if an error of rownorm or of your own provider is too large, 2 if nothing could be checked.
    """
    say_loading()
    from ...measure.check import cannot_check, check, offered_operations
    from .table import check_table, legend

    names = chosen_providers(providers, default=["rownorm", "torch"] if quick else None)
    for name in names if providers else ():
        if why := cannot_check(name):
            raise click.UsageError(f"{name} cannot be checked: {why}")
    results: list[CheckResult] = []

    def collected() -> Iterator[CheckResult]:
        for result in check(
            operations or offered_operations(names),  # type: ignore[arg-type]
            dtypes or (("bf16", "fp32") if quick else DTYPES),  # type: ignore[arg-type]
            names,
            forms=forms or (("plain",) if quick else tuple(FORMS)),
            data_sets=data_sets or (("normal", "offset", "outliers") if quick else None),
            directions=directions or ("forward", "backward"),  # type: ignore[arg-type]
        ):
            results.append(result)
            yield result

    try:
        for line in check_table(collected(), brief=quick):
            click.echo(line, err=as_json)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    judged = [one for one in results if one.status in ("ok", "over", "failed")]
    if not judged:
        raise click.UsageError("nothing was checked")
    if as_json:
        print_json({"results": results})
    else:
        click.echo("\n".join(["", *legend(results)]))
    for name in dict.fromkeys(one.provider for one in judged if one.own):
        _count(name, [one for one in judged if one.provider == name], as_json)
    if ours := [one for one in judged if one.ours]:
        _count("rownorm", ours, as_json)
    context.exit(int(any((one.ours or one.own) and not one.ok for one in judged)))


def _count(name: str, results: Sequence[CheckResult], aside: bool) -> None:
    accurate = sum(one.ok for one in results)
    click.echo(f"\n{name}: {accurate} of {len(results)} results are accurate", err=aside)
