"""What a user may name on the command line, and the nearest known name where they name something else."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from .cases import Case, Direction, Dtype
from .records import Reading
from .records import read as read_records
from .runs import is_taken
from .suites import SUITES, grid, parse_shapes

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not known: the nearest one, and all of them."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(known)}"


def listed(values: Iterable[str]) -> list[str]:
    """The names in values that may each hold several, separated by commas; each name once, in lower case."""
    names = (part.strip().lower() for value in values for part in value.split(","))
    return list(dict.fromkeys(name for name in names if name))


def names(what: str, known: Sequence[str]) -> Callback:
    """A callback for an option that takes known names, repeated or separated by commas."""

    def check(
        context: click.Context, parameter: click.Parameter, values: Sequence[str]
    ) -> tuple[str, ...]:
        for name in listed(values):
            if name not in known:
                raise click.BadParameter(unknown(what, name, known), context, parameter)
        return tuple(listed(values))

    return check


def shapes(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> tuple[tuple[int, int], ...]:
    """A callback for ``--shape``."""
    try:
        return tuple(dict.fromkeys(shape for value in values for shape in parse_shapes(value)))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def finite(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """A callback for an option that takes a number."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number to compare with", context, parameter)
    return value


def name(what: str, known: Sequence[str]) -> Callback:
    """A callback for an option that takes one known name."""

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and value.lower() not in known:
            raise click.BadParameter(unknown(what, value, known), context, parameter)
        return value and value.lower()

    return check


def providers(given: Sequence[str], default: Sequence[str] | None = None) -> list[str]:
    """The providers of ``--provider``; ``default``, or the usual ones, where none is named."""
    from .providers import all_providers, usual

    known = all_providers()
    for one in listed(given):
        if one not in known:
            raise click.BadParameter(unknown("provider", one, known), param_hint="'--provider'")
    return listed(given) or list(default or usual())


def data_sets(given: Sequence[str], default: Sequence[str] | None = None) -> list[str]:
    """The data sets of ``--data``."""
    from .data import DATA_SETS

    for one in listed(given):
        if one not in DATA_SETS:
            raise click.BadParameter(unknown("data set", one, DATA_SETS), param_hint="'--data'")
    return listed(given) or list(default or DATA_SETS)


def only(context: click.Context, option: str) -> None:
    """Refuse anything that is given beside an option that says everything."""
    source = click.core.ParameterSource.COMMANDLINE
    others = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name
        and parameter.name != option
        and context.get_parameter_source(parameter.name) == source
    ]
    if others:
        raise click.UsageError(
            f"--{option} goes on with what the run was started with; {', '.join(others)} cannot be changed",
            context,
        )


def not_taken(folder: Path, way_out: str = "") -> None:
    """Refuse an output folder in which something would be overwritten."""
    if is_taken(folder):
        raise click.BadParameter(
            f"{folder} exists and is not empty; choose another{way_out}", param_hint="'--out'"
        )


def read(*paths: Path) -> Reading:
    """Records, with a line for every one that is damaged; nothing readable is an error."""
    try:
        reading = read_records(*paths)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    where = f"{paths[0]}: " if len(paths) == 1 else ""  # of several, the reason names the file
    for number, reason in reading.damaged:
        click.echo(f"{where}line {number} cannot be used: {reason}", err=True)
    if not reading.records:
        raise click.UsageError(f"no record can be read from {', '.join(map(str, paths))}")
    return reading


def cases(
    suites: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    options: dict[str, object],
) -> list[Case]:
    """The cases that the options of ``bench`` ask for, each once: eps changes no time, so two that differ in nothing
    else are one, which has the names of both.

    Shapes are combined with every operation, pass and dtype. A suite has its own; there these options choose.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if options and not shapes:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise click.UsageError(
            f"{given} needs --shape: a suite says itself what its cases are. "
            "Example: rownorm bench --op layer_norm --pre-bias --shape 512x8192"
        )
    found = [
        *_of_suites(suites, operations, directions, dtypes),
        *_of_shapes(shapes, operations, directions, dtypes, options),
    ]
    alike: dict[tuple[str, int, int], list[Case]] = {}
    for case in found:
        alike.setdefault((case.kind, case.rows, case.cols), []).append(case)
    return [
        msgspec.structs.replace(
            same[0], name=", ".join(filter(None, dict.fromkeys(case.name for case in same)))
        )
        for same in alike.values()
    ]


def _of_suites(
    suites: Sequence[str],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
) -> list[Case]:
    all_cases = [case for suite in suites for case in SUITES[suite].cases()]
    kept = [
        case
        for case in all_cases
        if case.operation in (operations or [case.operation])
        and case.direction in (directions or [case.direction])
        and case.dtype in (dtypes or [case.dtype])
    ]
    if all_cases and not kept:
        there = {f"{one.operation} {one.direction} {one.dtype}": None for one in all_cases}
        raise click.UsageError(
            f"no case of suite {', '.join(suites)} is chosen. It has: {'; '.join(there)}"
        )
    return kept


def _of_shapes(
    shapes: Sequence[tuple[int, int]],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    options: dict[str, object],
) -> list[Case]:
    passes: list[Direction] = list(directions) or ["forward"]  # type: ignore[arg-type]
    types: list[Dtype] = list(dtypes) or ["bf16"]  # type: ignore[arg-type]
    try:
        return grid(operations or ["rms_norm"], passes, types, shapes, **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
