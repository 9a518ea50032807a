"""The cases that the options of ``rownorm bench`` select."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from ...command_line.options import usage_errors
from ...data.case import Case, Direction, Dtype
from ...data.shapes import MOST_SHAPES, Shape, parse_shapes
from ...data.suites import SUITES, grid


def parse_shapes_option(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> tuple[Shape, ...]:
    """The callback of ``--shape``."""
    try:
        return tuple(dict.fromkeys(shape for value in values for shape in parse_shapes(value)))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def select_cases(
    suites: Sequence[str],
    shapes: Sequence[Shape],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    options: dict[str, object],
) -> list[Case]:
    """The cases of the suites that match, then the shapes with every operation, pass and dtype; each case once.

    eps does not change a time, so cases that differ in eps alone are one case, with the names of all of them.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if options and not shapes:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise click.UsageError(
            f"{given} needs --shape: a suite defines the options of its cases. "
            "Example: rownorm bench --op layer_norm --pre-bias --shape 512x8192"
        )
    found = [
        *_of_suites(suites, operations, directions, dtypes),
        *_of_shapes(shapes, operations, directions, dtypes, options),
    ]
    by_place: dict[tuple[str, int, int], list[Case]] = {}
    for case in found:
        by_place.setdefault((case.kind, case.rows, case.cols), []).append(case)
    return [
        msgspec.structs.replace(
            same[0], name=", ".join(filter(None, dict.fromkeys(case.name for case in same)))
        )
        for same in by_place.values()
    ]


def _of_suites(
    suites: Sequence[str],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
) -> list[Case]:
    all_cases = [case for suite in suites for case in SUITES[suite].cases()]
    selected = [
        case
        for case in all_cases
        if case.operation in (operations or [case.operation])
        and case.direction in (directions or [case.direction])
        and case.dtype in (dtypes or [case.dtype])
    ]
    if all_cases and not selected:
        kinds = {f"{one.operation} {one.direction} {one.dtype}": None for one in all_cases}
        raise click.UsageError(
            f"no case of suite {', '.join(suites)} is selected. It has: {'; '.join(kinds)}"
        )
    return selected


def _of_shapes(
    shapes: Sequence[Shape],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    options: dict[str, object],
) -> list[Case]:
    passes: list[Direction] = list(directions) or ["forward"]  # type: ignore[arg-type]
    types: list[Dtype] = list(dtypes) or ["bf16"]  # type: ignore[arg-type]
    kinds = operations or ["rms_norm"]
    total = len(shapes) * len(kinds) * len(passes) * len(types)
    if total > MOST_SHAPES:  # counted before they are made
        raise click.UsageError(
            f"--shape with these operations, passes and dtypes has {total:,} cases, and {MOST_SHAPES:,} are the most"
        )
    with usage_errors():
        return grid(kinds, passes, types, shapes, **options)
