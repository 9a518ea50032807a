"""Options, arguments and checks of user input that several commands share.

An unknown name is a usage error (exit status 2). Its message gives the nearest known name and the whole list.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ..data.case import DIRECTIONS, DTYPES, OPERATIONS
from ..data.hold import FILE as IN_USE
from ..data.hold import InUse, hold
from ..data.records import Reading
from ..data.records import read as read_records
from ..data.runs import is_taken
from ..data.tables import wrapped
from ..data.user_files import Source, is_place

RECORDS = click.Path(exists=True, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
ALL_PROVIDERS = "all but those on request; without a GPU, not torch.compile"

Decorator = Callable[..., Any]
ARCHS = ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942")  # that kernels can be compiled for
DEFAULT_TARGET = "sm_90"  # without a GPU
MAX_COLS = 1 << 30  # that rownorm's operations take


class SuggestingGroup(click.Group):
    """A group of commands that suggests the nearest name for an unknown one, and keeps their order."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            message = unknown("command", args[0], self.list_commands(ctx))
            raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


# ---- help ----


def examples(*commands: str, before: str = "") -> str:
    """The end of a command's help: ``before``, then commands that can be copied."""
    lines = "\n".join(f"  {line}" for line in commands)
    return f"{before}\b\nExamples:\n{lines}"


def named_options(context: click.Context) -> dict[str, str]:
    """The parameters of a command that the command line gives, each with its flag."""
    return {
        one.name: one.opts[0]
        for one in context.command.params
        if one.name
        and context.get_parameter_source(one.name) == click.core.ParameterSource.COMMANDLINE
    }


# ---- names ----


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: the nearest known one, and all of them."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(known)}"


def split_names(values: Iterable[str]) -> list[str]:
    """The names in values that each may hold several, separated by commas: each once, in lower case."""
    names = (part.strip().lower() for value in values for part in value.split(","))
    return list(dict.fromkeys(name for name in names if name))


def names_option(*flags: str, what: str, known: Sequence[str], help: str) -> Decorator:
    """An option that takes known names, repeated or separated by commas."""

    def check(
        context: click.Context, parameter: click.Parameter, values: Sequence[str]
    ) -> tuple[str, ...]:
        for name in split_names(values):
            if name not in known:
                raise click.BadParameter(unknown(what, name, known), context, parameter)
        return tuple(split_names(values))

    return click.option(*flags, multiple=True, metavar="NAME", callback=check, help=help)


def count_option(*names: str, help: str, default: int | None = None, least: int = 1) -> Decorator:
    """An option that takes a number, ``least`` or more; its default is part of its help."""
    shown = default is not None
    number = click.IntRange(min=least)
    return click.option(*names, type=number, default=default, show_default=shown, help=help)


def finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """The callback of an option whose number must not be infinite or NaN, which are in click's ranges."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to calculate with", context, parameter)
    return value


def name_option(*flags: str, what: str, known: Sequence[str], help: str) -> Decorator:
    """An option that takes one known name; its help lists them."""

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and value.lower() not in known:
            raise click.BadParameter(unknown(what, value, known), context, parameter)
        return value and value.lower()

    return click.option(*flags, metavar="NAME", callback=check, help=f"{help}: {', '.join(known)}.")


def case_options(
    *,
    operations: str,
    directions: str,
    dtypes: str,
    known_operations: Sequence[str] = OPERATIONS,
    known_directions: Sequence[str] = DIRECTIONS,
) -> Decorator:
    """The options --op, --pass and --dtype; the first three arguments describe their defaults."""
    rows = (
        ("--dtype", "dtypes", "dtype", DTYPES, dtypes),
        ("--pass", "directions", "pass", known_directions, directions),
        ("--op", "operations", "operation", known_operations, operations),
    )

    def add(command: Decorator) -> Decorator:
        for flag, parameter, what, known, default in rows:
            text = f"{', '.join(known)}. Default: {default}."
            command = names_option(flag, parameter, what=what, known=known, help=text)(command)
        return command

    return add


def provider_option(default: str) -> Decorator:
    """The option --provider. Its names are checked by ``chosen_providers``, because listing them imports torch."""
    return click.option(
        "--provider",
        "providers",
        multiple=True,
        metavar="NAME",
        help=f"Providers to run, see rownorm info; or FILE.py:function, your own. Default: {default}.",
    )


def chosen_providers(
    given: Sequence[str], default: Sequence[str] | None = None, beside_own: bool = False
) -> list[str]:
    """The providers that ``--provider`` names, those of files loaded; else ``default``, or what suits this machine.

    beside_own: if all of them are of files, they are added to the default. If Triton's interpreter runs them, other
    kernels that it would run are left out of the default: they take it minutes.
    """
    from ..providers import all_providers, is_interpreted, usual

    parts = [part.strip() for value in given for part in value.split(",") if part.strip()]
    own = [_own_provider(part) for part in dict.fromkeys(parts) if is_place(part)]
    named = split_names(part for part in parts if not is_place(part))
    known = all_providers()
    for name in named:
        if name not in known:
            message = unknown("provider", name, known)
            if ":" in name or Path(name).exists():
                message += ". A function of yours is FILE.py:function"
            raise click.BadParameter(message, param_hint="'--provider'")
    if not named and (beside_own or not own):
        named = list(default or usual())
        if any(is_interpreted(known[name]) for name in own):
            named = [name for name in named if not is_interpreted(known[name])]
    return list(dict.fromkeys([*named, *own]))


def own_sources(names: Iterable[str]) -> list[Source]:
    """Where those of the named providers come from that are of users' files."""
    if not names:
        return []
    from ..providers import all_providers

    known = all_providers()
    return [source for name in names if (source := known[name].source) is not None]


def _own_provider(place: str) -> str:
    """The name of the provider in a user's file."""
    from ..providers.own import add_provider

    with usage_errors("'--provider'"):
        return add_provider(place).name


# ---- files ----


def say(text: str, indent: int = 2, *, breaks_words: bool = False, err: bool = False) -> None:
    """Print a line, wrapped to the width of the terminal; its other lines are indented."""
    click.echo("\n".join(wrapped(text, indent, breaks_words=breaks_words)), err=err)


def say_loading(what: str = "torch") -> None:
    """A word before torch is imported, which takes seconds."""
    click.echo(f"loading {what}", err=True)


@contextlib.contextmanager
def usage_errors(hint: str = "") -> Iterator[None]:
    """A ValueError inside is a usage error: its message says what to do. hint: the parameter that it is about."""
    try:
        yield
    except ValueError as error:
        if hint:
            raise click.BadParameter(str(error), param_hint=hint) from None
        raise click.UsageError(str(error)) from None


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; docs/json.md has its keys."
)


@contextlib.contextmanager
def words_aside(as_json: bool) -> Iterator[None]:
    """With --json, what is printed inside goes to stderr: stdout has the JSON alone."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def print_json(content: object) -> None:
    """Print a document that ``--json`` asks for."""
    from ..data.files import json_text

    click.echo(json_text(content))


def refuse_taken(folder: Path, alternative: str = "", hint: str = "'--out'") -> None:
    """Refuse an output folder in which something would be overwritten. hint: where it was named.

    If a process writes into it, the message names that one.
    """
    refuse_in_use(folder)
    if is_taken(folder):
        raise click.BadParameter(
            f"{folder} exists and is not empty; choose another{alternative}", param_hint=hint
        )


def refuse_written(file: Path) -> None:
    """Refuse an output folder that has this file."""
    if file.exists():
        raise click.BadParameter(f"{file} exists; choose another folder", param_hint="'--out'")


def refuse_in_use(folder: Path) -> None:
    """Refuse an output folder into which a process writes; the file that a killed one left there is removed."""
    if (folder / IN_USE).exists():
        with held(folder):
            pass


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of an output folder; a usage error that names the one that is in it."""
    try:
        with hold(folder):
            yield
    except InUse as error:
        raise click.UsageError(str(error)) from None


def read_or_fail(*paths: Path) -> Reading:
    """Read records and print a line for each damaged one; a usage error if none can be read."""
    try:
        reading = read_records(*paths)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    # Of several files, the reason names the file.
    where = f"{paths[0]}: " if len(paths) == 1 else ""
    by_reason: dict[str, list[int]] = {}
    for number, reason in reading.damaged:
        by_reason.setdefault(reason, []).append(number)
    for reason, numbers in by_reason.items():
        lines = f"line {numbers[0]}"
        if len(numbers) > 1:
            lines = f"{len(numbers)} lines, the first is {numbers[0]},"
        click.echo(f"{where}{lines} cannot be used: {reason}", err=True)
    if not reading.records:
        raise click.UsageError(f"no record can be read from {', '.join(map(str, paths))}")
    return reading
