"""Search: compile all candidates, time each, and keep the fastest for each width.

Timing is that of ``rownorm bench``: device time from a CUDA graph over inputs larger than L2.
"""

from __future__ import annotations

import functools
import multiprocessing
import statistics
from collections.abc import Sequence
from typing import Any

import click
import torch

from ...launch import force
from ..measure.machine import Machine
from ..measure.timing import Flush, GraphRounds
from .candidates import Settings, candidates
from .study import Study, prepared
from .table import TableRow

FINALISTS = 6  # settings that are measured a second time
FEW_ROWS = 8  # settings that are equally fast with many rows are compared with this many
FEW_COPIES = 64
NEARLY = 0.997  # of the fastest counts as equal: repeated measurements differ by as much


def compile_all(studies: Sequence[Study], workers: int) -> None:
    """Compile the candidates of all studies in several processes, into Triton's cache on disk."""
    jobs = [(study, settings) for study in studies for settings in candidates(study)]
    # The number of programs does not change what is compiled, except for a grid, whose programs must all be resident.
    kinds = {
        str(
            (study, settings)
            if "pipeline_depth" in settings
            else (study, {**settings, "programs_per_sm": 0})
        ): (study, settings)
        for study, settings in jobs
    }
    click.echo(f"{len(jobs)} settings for {len(studies)} rows of the table")
    n_shares = 4 * workers
    shares = [list(kinds.values())[i::n_shares] for i in range(n_shares)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(_compile_share, shares, chunksize=1)


def _compile_share(jobs: list[tuple[Study, Settings]]) -> None:
    """Run each pair once. Failures are printed; the measurement will report them again."""
    for study, settings in jobs:
        try:
            with force(**settings):
                call, _, inputs, _ = prepared(study, n_rows=64, copies=1)
                call(inputs[0])
        except Exception as error:
            click.echo(f"cannot compile {study} {settings}: {type(error).__name__}", err=True)


def seconds_of(
    call: Any, inputs: list[Any], flush: Flush | None, rounds: int, repeats: int = 1
) -> float:
    """Device time of one call, the median of the rounds. A round uses all inputs ``repeats`` times."""
    assert flush is not None  # there is a GPU
    seconds = []
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = GraphRounds([functools.partial(call, one) for one in inputs], repeats, flush)
        for _ in range(rounds):
            finished = graph.run()
            torch.cuda.synchronize()
            seconds.append(finished())
    return statistics.median(seconds)


class StudyTimer:
    """Times the calls of a study with any settings."""

    def __init__(self, study: Study, machine: Machine) -> None:
        self.study, self.flush = study, machine.flush
        # Rounds as in ``rownorm bench``: settings that are fast once may be slow in back-to-back calls.
        size = machine.round_size(study.case(study.n_rows))
        self.repeats = size.repeats
        self.call, self.ceiling, self.inputs, self.moved = prepared(study, study.n_rows, size.sets)
        torch.cuda.synchronize()

    def speed(self, settings: Settings, rounds: int) -> float:
        """The bandwidth with these settings, in GB/s."""
        with force(**settings):
            return self._speed(self.call, rounds)

    def row(self, speed: float, settings: Settings) -> TableRow:
        """The row of the table: settings, with their bandwidth and the ceiling's."""
        return {
            "direction": self.study.direction,
            "center": self.study.center,
            "itemsize": self.study.dtype.itemsize,
            "residual": self.study.residual.itemsize if self.study.residual else 0,
            "option": self.study.option,
            "max_cols": self.study.n_cols,
            "settings": settings,
            "gb_per_s": round(speed),
            "ceiling_gb_per_s": round(self._speed(self.ceiling, 9)),
        }

    def _speed(self, call: Any, rounds: int) -> float:
        return self.moved / seconds_of(call, self.inputs, self.flush, rounds, self.repeats) / 1e9


def best_rows(study: Study, machine: Machine) -> list[TableRow]:
    """The rows of the table for one width: the fastest settings, with their figures.

    If they are ``looped``, with chunks that the width fills, there is a second row for widths that do not fill them.
    """
    timer = StudyTimer(study, machine)
    measured = []
    for settings in candidates(study):
        try:
            measured.append((timer.speed(settings, 5), settings))
        except Exception as error:
            click.echo(f"cannot run {study} {settings}: {type(error).__name__}", err=True)
    measured.sort(key=lambda pair: -pair[0])
    final = remeasured(timer, [settings for _, settings in measured])
    chosen = final[0]
    if study.direction == "forward":
        chosen = quickest_of_few(study, final, machine)
    rows = [timer.row(*chosen)]
    if chosen[1]["regime"] == "looped":
        others = [settings for _, settings in measured if settings["regime"] != "looped"]
        timer = StudyTimer(study._replace(n_cols=width_between(study.n_cols)), machine)
        row = timer.row(*remeasured(timer, others)[0])
        rows.append(row | {"max_cols": study.n_cols, "measured_cols": timer.study.n_cols})
    return rows


def remeasured(timer: StudyTimer, settings: list[Settings]) -> list[tuple[float, Settings]]:
    """The first FINALISTS of them, measured with more rounds: (GB/s, settings), the fastest first."""
    measured = [(timer.speed(one, 15), one) for one in settings[:FINALISTS]]
    return sorted(measured, key=lambda pair: -pair[0])


def width_between(n_cols: int) -> int:
    """A width between this one and the next narrower one of WIDTHS, which does not fill chunks."""
    return n_cols * 7 // 8


def quickest_of_few(
    study: Study, measured: list[tuple[float, Settings]], machine: Machine
) -> tuple[float, Settings]:
    """Of the settings nearly as fast as the fastest, the one with the least time for FEW_ROWS rows."""
    fastest = max(speed for speed, _ in measured)
    equals = [pair for pair in measured if pair[0] > NEARLY * fastest]
    if len(equals) == 1:
        return equals[0]
    call, _, inputs, _ = prepared(study, FEW_ROWS, copies=FEW_COPIES)
    torch.cuda.synchronize()

    def latency(settings: Settings) -> float:
        with force(**settings):
            return seconds_of(call, inputs, machine.flush, rounds=15)

    return min(equals, key=lambda pair: latency(pair[1]))
