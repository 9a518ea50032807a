"""``rownorm analyze FILE.py:kernel``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ...command_line.options import usage_errors
from ...command_line.own_kernel import OwnOptions, combinations, label_of, sweep_of
from ...compiled.compile import target_of
from ...compiled.own import analyze_launch
from ...compiled.recorded import chosen_launch, compiler_message, require_constants
from ...data.own_analyses import OwnAnalysis, judged

if TYPE_CHECKING:
    from ...compiled.roofline import Ceiling


def analyses_of_own(
    place: str,
    options: OwnOptions,
    targets: Sequence[str],
    blocks: str | None,
    ceiling: Ceiling | None,
    failures: list[str],
) -> Iterator[list[OwnAnalysis]]:
    """The analyses of a launch on each target, alone or with several values of a constant.

    What cannot be compiled becomes a line of ``failures``.
    """
    sweep = combinations([sweep_of(blocks, "--blocks")], "--blocks") if blocks else []
    arguments = options.launch_arguments()
    for name in targets:
        with usage_errors():
            target = target_of(name)
            source, launched, n_launches = chosen_launch(place, target, **arguments)
            require_constants(launched, sweep[0] if sweep else ())
        if n_launches > 1:
            click.echo(
                f"{source.name} is launched in {n_launches} ways; this is number {arguments['number']}, "
                "--launch chooses another",
                err=True,
            )
        found = []
        for values in sweep or [{}]:
            label = label_of(values) or launched.kernel.__name__
            try:
                found.append(
                    analyze_launch(launched.with_values(values), source, target, label, ceiling)
                )
            except Exception as error:  # of the compiler, whatever its type
                failures.append(f"{label} on {name}: {compiler_message(error)}")
        if sweep:
            as_recorded = [one for one in found if one.launch == launched.describe()]
            with contextlib.suppress(Exception):  # it does not compile: nothing to compare with
                recorded = (as_recorded or [analyze_launch(launched, source, target, "")])[0]
                found = [judged(one, recorded) for one in found]
        yield found
