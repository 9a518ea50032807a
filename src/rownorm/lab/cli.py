"""The command ``rownorm``: one thin function for each command. What takes long to import is imported inside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..version import __version__
from . import choices
from .cases import ACTIVATIONS, DIRECTIONS, DTYPES, OPERATIONS
from .statistics import MARGIN
from .suites import SHAPE_EXAMPLES, SUITES

RECORDS = click.Path(exists=True, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
OLD_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
ROUNDS, QUICK_ROUNDS = 15, 5


class Commands(click.Group):
    """A group that knows the nearest command to one that does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            message = choices.unknown("command", args[0], self.list_commands(ctx))
            raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they are used


def texts(short: str, *examples: str, more: str = "") -> dict[str, Any]:
    """A command's line in the list of commands, and the end of its help: commands that can be copied."""
    lines = "\n".join(f"  {line}" for line in examples)
    return {"short_help": short, "epilog": f"{more}\b\nExamples:\n{lines}"}


def names(*flags: str, what: str, known: Sequence[str], help: str) -> Callable[..., Any]:
    """An option that takes known names, repeated or separated by commas."""
    check = choices.names(what, known)
    return click.option(*flags, multiple=True, metavar="NAME", callback=check, help=help)


def kinds_of_case(**defaults: str) -> Callable[..., Any]:
    """The options --op, --pass and --dtype, with what each is where it is not given."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for flag, parameter, what, known in (
            ("--dtype", "dtypes", "dtype", DTYPES),
            ("--pass", "directions", "pass", DIRECTIONS),
            ("--op", "operations", "operation", OPERATIONS),
        ):
            text = f"{', '.join(known)}. Default: {defaults[parameter]}."
            command = names(flag, parameter, what=what, known=known, help=text)(command)
        return command

    return add


def name(flag: str, *, what: str, known: Sequence[str], help: str) -> Callable[..., Any]:
    """An option that takes one known name."""
    check = choices.name(what, known)
    return click.option(flag, metavar="NAME", callback=check, help=f"{help}: {', '.join(known)}.")


def providers_option(default: str) -> Callable[..., Any]:
    return click.option(
        "--provider",
        "providers",
        multiple=True,
        metavar="NAME",
        help=f"Who takes part, see rownorm info. Default: {default}.",
    )


EVERYONE = "everyone; without a GPU not torch.compile"


def show_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"rownorm {__version__}")
        context.exit()


@click.group(
    "rownorm",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    **texts(
        "",
        "rownorm info",
        "rownorm check --quick",
        "rownorm bench --suite quick --out results/first",
        "rownorm report results/first",
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """LayerNorm and RMSNorm on this machine: are they right, how fast, and how close to the limit?"""


@cli.command(**texts("What is here, what is missing, how to get it.", "rownorm info"))
def info() -> None:
    """What is here: devices, versions, providers, and how to get those that are missing."""
    from .commands import show_info

    show_info()


@cli.command(
    **texts(
        "Errors against fp64; before anything is timed.",
        "rownorm check",
        "rownorm check --quick",
        "rownorm check --op rms_norm,layer_norm --dtype bf16 --provider rownorm,torch",
        "rownorm check --data offset,near_eps",
    )
)
@kinds_of_case(operations="all", directions="forward and backward", dtypes="all")
@click.option(
    "--data",
    "data_sets",
    multiple=True,
    metavar="NAME",
    help="normal, offset, near_eps, outliers, constant. Default: all.",
)
@providers_option(EVERYONE)
@click.option("--quick", is_flag=True, help="rownorm and torch, bf16 and fp32, the worst data.")
@click.pass_context
def check(
    context: click.Context,
    /,
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    data_sets: Sequence[str],
    providers: Sequence[str],
    quick: bool,
) -> None:
    """Errors against fp64 of every provider, operation, pass, dtype and hard data set.

    An ulp is one step of the output's dtype. Without a GPU the kernels are checked in Triton's interpreter.

    Exit status 1 if rownorm exceeds its budget.
    """
    chosen = choices.providers(providers, default=["rownorm", "torch"] if quick else None)
    data = choices.data_sets(data_sets, default=["normal", "offset", "outliers"] if quick else None)
    from .commands import check_accuracy

    context.exit(
        check_accuracy(
            operations or OPERATIONS,
            directions or ("forward", "backward"),
            dtypes or (("bf16", "fp32") if quick else DTYPES),
            data,
            chosen,
            brief=quick,
        )
    )


@cli.command(
    **texts(
        "Measure; records out.",
        "rownorm bench --suite seed",
        "rownorm bench --suite speed --op rms_norm --pass backward",
        "rownorm bench --op rms_norm,layer_norm --dtype bf16 --shape 4096x256..32768",
        "rownorm bench --op layer_norm --pre-bias --dtype fp32 --shape 512x8192 --provider rownorm,torch",
        "rownorm bench --suite llama-3-8b --list",
        "rownorm bench --resume results/2026-01-31-120000",
        more="\b\nSuites:\n"
        + "\n".join(f"  {one.name:15} {one.about}" for one in SUITES.values())
        + "\n\n",
    )
)
@names(
    "--suite",
    "suites",
    what="suite",
    known=list(SUITES),
    help="A named list of cases; they are listed below.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="ROWSxCOLS",
    callback=choices.shapes,
    help=f"Sizes, lists and ranges: {SHAPE_EXAMPLES}. A range doubles, or goes in steps.",
)
@kinds_of_case(operations="rms_norm", directions="forward", dtypes="bf16")
@providers_option(EVERYONE)
@click.option("--bias/--no-bias", default=None, help="After the norm. Default: LayerNorm has one.")
@click.option("--pre-bias", is_flag=True, default=None, help="A bias before the norm.")
@name("--activation", what="activation", known=ACTIVATIONS, help="After the norm")
@name("--residual-dtype", what="dtype", known=DTYPES, help="Of the residual of add_ operations")
@click.option("--eps", type=float, help="Default: 1e-5.")
@click.option("--rounds", type=click.IntRange(min=1), help=f"Default: {ROUNDS}.")
@click.option("--quick", is_flag=True, help=f"{QUICK_ROUNDS} rounds; the quick suite by default.")
@click.option("--out", type=FOLDER, help="A new folder; default: results/DATE-TIME.")
@click.option("--resume", type=OLD_FOLDER, metavar="FOLDER", help="Go on with a run that ended.")
@click.option("--list", "only_list", is_flag=True, help="Print the cases and stop.")
@click.pass_context
def bench(
    context: click.Context,
    /,
    suites: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    providers: Sequence[str],
    rounds: int | None,
    quick: bool,
    out: Path | None,
    resume: Path | None,
    only_list: bool,
    **options: Any,
) -> None:
    """Measure: one record for each provider and case, written as soon as it is there.

    --op, --pass and --dtype say what is done to the shapes of --shape; of a --suite they choose cases, by default all.
    Ctrl-C ends a run and keeps what was measured; --resume goes on, also with what failed or was missing.

    Exit status 1 if rownorm failed or is wrong, or if nothing could be measured.
    """
    from . import runs

    if resume is not None:
        choices.only(context, "resume")
        folder = resume
        try:
            plan = runs.read_plan(folder)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    else:
        if quick and not (suites or shapes):
            suites = ["quick"]
        cases = choices.cases(suites, shapes, operations, directions, dtypes, options)
        if not cases:
            raise click.UsageError(
                "say what to measure, for example: --suite quick, or --op rms_norm --shape 4096x8192"
            )
        if only_list:
            click.echo("\n".join(f"{case.key}  {case.name}".rstrip() for case in cases))
            return
        plan = runs.Plan(
            cases=cases,
            providers=choices.providers(providers),
            rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
        )
        folder = out or runs.new_name()
        choices.not_taken(folder, f", or go on with it: --resume {folder}")
    from .commands import measure

    context.exit(measure(folder, plan))


@cli.command(
    **texts(
        "Records in; a page, plots and an analysis out.",
        "rownorm report results/first",
        "rownorm report results/monday results/tuesday --out report",
        "rownorm report records.jsonl --out report --force",
    )
)
@click.argument("records", nargs=-1, required=True, type=RECORDS)
@click.option("--out", type=FOLDER, help="Default: report/ in the folder of the records.")
@click.option("--plots/--no-plots", default=True, help="Write plots/*.png as well.")
@click.option("--force", is_flag=True, help="Replace a report that is there.")
def report(records: Sequence[Path], out: Path | None, plots: bool, force: bool) -> None:
    """Make report.html, plots/*.png and analysis.md from records and nothing else.

    RECORDS are files, or folders that bench has written. The page is one file and needs no network.
    """
    if out is None:
        if len(records) > 1:
            raise click.UsageError("several RECORDS: say where the report goes with --out FOLDER")
        out = (records[0] if records[0].is_dir() else records[0].parent) / "report"
    if not force:
        choices.not_taken(out, ", or --force to replace the report in it")
    reading = choices.read(*records)
    from .commands import make_report

    make_report(reading, out, plots)


@cli.command(
    **texts(
        "Two sets of records: faster, same, slower.",
        "rownorm compare results/main results/branch",
        "rownorm compare results/main results/branch --margin 0.05 --fail-on never",
        "rownorm compare h100.jsonl h200.jsonl --anyway",
    )
)
@click.argument("base", type=RECORDS)
@click.argument("new", type=RECORDS)
@providers_option("rownorm")
@click.option(
    "--margin",
    type=click.FloatRange(min=0),
    callback=choices.finite,
    default=MARGIN,
    show_default=True,
    help="Closer than this is the same.",
)
@click.option("--raw", is_flag=True, help="Compare times, not times relative to the ceiling.")
@click.option("--anyway", is_flag=True, help="Compare different devices or methods too.")
@click.option(
    "--fail-on",
    type=click.Choice(["slower", "unclear", "never"]),
    default="slower",
    show_default=True,
    help="What makes the exit status 1; unclear includes slower.",
)
@click.pass_context
def compare(context: click.Context, /, base: Path, new: Path, **options: Any) -> None:
    """Is NEW faster, the same, slower than BASE, or is that unclear? Case by case, for CI.

    Exit status 1 if a case is slower, or was measured before and now is wrong or fails; 2 if
    the two cannot be compared.
    """
    providers = choices.providers(options.pop("providers"), default=["rownorm"])
    from .commands import compare_records

    context.exit(compare_records(base, new, providers=providers, **options))


def main() -> None:
    """The entry point: 2 for what cannot be understood, 130 for Ctrl-C."""
    try:
        status = cli.main(prog_name="rownorm", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # somebody read enough: rownorm bench --list | head
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or error}", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
