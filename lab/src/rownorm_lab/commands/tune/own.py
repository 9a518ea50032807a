"""``rownorm tune FILE.py:kernel --over BLOCK=64..1024``: constants of a user's kernel, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import torch

from ...command_line.options import DEFAULT_TARGET, print_json, refuse_written, usage_errors
from ...command_line.own_kernel import OwnOptions, combinations, label_of, sweep_of
from ...compiled.compile import target_of
from ...compiled.own import analyze_launch
from ...compiled.recorded import Launched, chosen_launch, compiler_message, require_constants
from ...data import texts
from ...data.own_analyses import FILE, OwnAnalysis, brief_table, judged, write
from ...data.tables import fitted, wrapped

LEVEL = 1.01  # a time that is no longer than this is level with the shortest
PREDICTED_ONLY = (
    "There is no GPU here: these times are predicted from compiled code, and nothing was measured."
)


class Candidate(NamedTuple):
    """One combination of values. why: the reason if it cannot be compiled, or is wrong."""

    values: dict[str, Any]
    analysis: OwnAnalysis | None
    why: str = ""

    @property
    def label(self) -> str:
        return label_of(self.values)

    @property
    def seconds(self) -> float | None:
        """The measured time, else the predicted one."""
        if self.analysis is None or self.why:
            return None
        if self.analysis.measured_seconds is not None:
            return self.analysis.measured_seconds
        return self.analysis.traffic.predicted_seconds if self.analysis.traffic else None


def tune_own(
    place: str,
    options: OwnOptions,
    over: Sequence[str],
    target_name: str | None,
    out: Path | None,
    as_json: bool = False,
) -> int:
    """Try every combination of the values. Return the exit status: 1 if none can be used."""
    sweep = combinations([sweep_of(one, "--over") for one in over], "--over")
    if out is not None:
        refuse_written(out / FILE)
    measure = target_name is None and torch.cuda.is_available()
    if measure and options.signature is not None:
        raise click.UsageError(
            "--signature has no tensors to measure with: use --call, or --target"
        )
    arguments = options.launch_arguments()
    with usage_errors():
        target = target_of("this" if measure else target_name or DEFAULT_TARGET)
        source, launched, _ = chosen_launch(place, target, **arguments)
        require_constants(launched, sweep[0])
    said = wrapped(f"{launched.kernel.__name__}: {launched.describe()}", indent=2)
    click.echo("\n".join(said), err=as_json)
    recorded = analyze_launch(launched, source, target, "as launched")
    found = []
    for values in sweep:
        try:
            one = analyze_launch(launched.with_values(values), source, target, label_of(values))
            one = judged(one, recorded)
            found.append(Candidate(values, one, one.wrong))
        except Exception as error:  # of the compiler, whatever its type
            found.append(Candidate(values, None, compiler_message(error)))
    if measure:
        from ...compiled.own_timing import launched_here

        with usage_errors():
            real = launched_here(source, arguments["call"], arguments["number"])
        found = _measured(real.with_values(arguments["constants"]), found)
    else:
        said = [PREDICTED_ONLY if target_name is None else "Predicted from compiled code."]
        click.echo("\n".join(said), err=as_json)
    click.echo("\n".join(["", *_table(found), "", *_verdict(found, measure)]), err=as_json)
    if as_json:
        print_json({"candidates": [one._asdict() | {"seconds": one.seconds} for one in found]})
    if out is not None:
        analyses = [one.analysis for one in found if one.analysis]
        click.echo(f"wrote {write(out, analyses)}", err=as_json)
    return int(all(one.seconds is None for one in found))


def _measured(real: Launched, found: Sequence[Candidate]) -> list[Candidate]:
    from ...compiled.own_timing import time_variants

    # A variant that stores a part would look right: the rest is in the copies, from the recorded launch.
    usable = [one for one in found if one.analysis is not None and not one.why]
    times = iter(time_variants(real, [real.with_values(one.values) for one in usable]))
    timed = []
    for one in found:
        if one.analysis is not None and not one.why:
            time = next(times)
            analysis = msgspec.structs.replace(one.analysis, measured_seconds=time.seconds)
            one = Candidate(one.values, analysis, time.why)
        timed.append(one)
    return timed


def _table(found: Sequence[Candidate]) -> list[str]:
    header, figures = brief_table([one.analysis for one in found if one.analysis])
    of_each = iter(figures)
    lines = [
        [*map(str, one.values.values()), *(next(of_each) if one.analysis else [""] * len(header))]
        for one in found
    ]
    wrong = [f"{one.label}: {one.why}" for one in found if one.why]
    return [
        *fitted([*found[0].values, *header], lines),
        *(part for one in wrong for part in wrapped(f"  {one}", 4)),
    ]


def _verdict(found: Sequence[Candidate], measured: bool) -> list[str]:
    """The best, and why it is better than the worst."""
    usable = [(one, one.analysis, one.seconds) for one in found]
    timed = [(one, a, s) for one, a, s in usable if a is not None and s is not None]
    if not timed:
        return ["None of them can be used."]
    best, analysis, shortest = min(timed, key=lambda each: each[2])
    level = [one.label for one, _, seconds in timed if seconds <= LEVEL * shortest]
    word = "Measured" if measured else "Predicted"
    shared = "all" if len(level) == len(found) > 1 else texts.listed(level)
    lines = [f"{word} best: {texts.duration(shortest)} with {shared}."]
    worst, other, longest = max(timed, key=lambda each: each[2])
    if longest > LEVEL * shortest:
        lines.append(
            f"{worst.label} takes {texts.times(longest / shortest)} as long: "
            f"{'; '.join(_differences(analysis, other)) or 'no figure of the code explains it'}."
        )
    if measured and analysis.traffic:
        reached = analysis.traffic.compulsory_bytes / shortest
        lines.append(
            f"{best.label} reaches {texts.gigabytes_per_second(reached)}, "
            f"{texts.percent(reached / analysis.ceiling)} of the ceiling."
        )
    return [part for line in lines for part in wrapped(line)]


def _differences(best: OwnAnalysis, worst: OwnAnalysis) -> list[str]:
    """What the worst does otherwise."""
    found = []
    if worst.spilled_bytes > best.spilled_bytes:
        found.append(f"it spills {worst.spilled_bytes} bytes of a thread, not {best.spilled_bytes}")
    if worst.occupancy < 0.9 * best.occupancy:
        found.append(
            f"occupancy is {texts.percent(worst.occupancy)}, not {texts.percent(best.occupancy)}, "
            f"limited by {worst.limited_by.split(' and ')[0]}"
        )
    a, b = best.traffic, worst.traffic
    if a is None or b is None:
        return found
    if a.bound != b.bound:
        found.append(f"it is bound by {b.bound}, not by {a.bound}")
    flights = [
        t.in_flight_bytes * min(one.programs_per_sm, one.programs)
        for t, one in ((a, best), (b, worst))
    ]
    if flights[1] < 0.9 * flights[0]:
        found.append(
            f"{texts.memory(flights[1])} are in flight on a multiprocessor, not {texts.memory(flights[0])}"
        )
    if b.memory_read + b.memory_written > 1.02 * (a.memory_read + a.memory_written):
        found.append(
            f"it moves {texts.memory(b.memory_read + b.memory_written)}, "
            f"not {texts.memory(a.memory_read + a.memory_written)}"
        )
    if b.sector_use < 0.95 * a.sector_use:
        found.append(
            f"{texts.percent(b.sector_use)} of its sectors are used, not {texts.percent(a.sector_use)}"
        )
    return found
