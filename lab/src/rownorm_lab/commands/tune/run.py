"""What ``rownorm tune`` does once its options are parsed: search into a folder, then write the table."""

from __future__ import annotations

import datetime
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from rownorm.inside import Device

from ...cluster import ClusterError
from ...command_line.progress import Display
from ...data import tunings as saved
from ...data.case import torch_dtype
from ...data.tables import WIDTH, shortened
from ...data.texts import count, duration
from ...data.tunings import REQUEST, SUMMARY, TuneRequest, Tuning, Verified
from . import verify
from .compiling import Ahead
from .journal import Journal, Trial, left_out, n_timed
from .search import Search
from .study import TuningCase
from .table import TableRow, line_of, read_base, study_of, updated, write_table
from .timer import DeviceLost, Timer

INTERRUPTED, FAILED, LEFT = 130, 1, 3  # exit status

# Searches studies in other processes: (journal, numbers of studies, what shows a trial, what says a line) to pairs of
# the number of a study whose trials are in the journal, and why it failed, if it did.
Elsewhere = Callable[
    [Journal, Iterator[int], Callable[[Trial], None], Callable[[str], None]],
    Iterator[tuple[int, str]],
]


def studies_of(request: TuneRequest) -> list[TuningCase]:
    """The studies of a request, in the order of the table."""
    if request.verify:
        return [study_of(row, row.get("measured_cols")) for row in request.verify]
    residual = torch_dtype(request.residual_dtype) if request.residual_dtype else None  # type: ignore[arg-type]
    return [
        TuningCase(
            direction,  # type: ignore[arg-type]
            operation == "layer_norm",
            torch_dtype(dtype),  # type: ignore[arg-type]
            n_cols,
            residual,
            request.option,
        )
        for dtype in request.dtypes
        for direction in request.directions
        for operation in sorted(request.operations, reverse=True)
        for n_cols in request.widths
    ]


class _Run:
    """A run in a folder: rows found, failures, and what is printed."""

    def __init__(
        self, folder: Path, request: TuneRequest, search: Search, display: Display
    ) -> None:
        self.folder, self.request, self.search, self.display = folder, request, search, display
        self.rows: list[TableRow] = []
        self.verified: list[Verified] = []
        self.failures: list[str] = []
        self.left = len(studies_of(request))

    def one(self, study: TuningCase, row: TableRow | None) -> None:
        """Search one study; row: the shipped one that is verified, or None."""
        self.display.show(study.key)
        try:
            if row is not None:
                self.verified.append(verify.verified(self.search, row))
                self.display.say(f"{study.key}: found / shipped {self.verified[-1].ratio:.3f}")
            else:
                for found in self.search.rows(study):
                    self.rows.append(found)
                    self.display.say(line_of(found))
            self.left -= 1
        except ValueError as error:  # no settings can be used
            self.failed(str(error))

    def failed(self, why: str) -> None:
        """Note that a study has no row."""
        self.failures.append(why)
        self.display.say(why)

    def save(self, table: str) -> None:
        """Write the summary."""
        trials = self.search.journal.trials
        summary = Tuning(
            environment=self.request.environment,
            date=datetime.date.today().isoformat(),
            timed=n_timed(trials),
            left_out=left_out(trials),
            rows=self.rows,
            verified=self.verified,
            studies_left=self.left,
            table=table,
        )
        saved.write(self.folder, SUMMARY, summary)


def run_tune(
    folder: Path,
    request: TuneRequest,
    device: Device,
    ahead: Ahead,
    timer_of: Callable[[TuningCase], Timer],
    limit_s: float | None = None,
    elsewhere: Elsewhere | None = None,
) -> int:
    """Search what is requested and not yet in the folder, and write the table. Return the exit status.

    130: Ctrl-C ended it. 3: limit_s did. 1: a row has no settings, the GPU was lost, or a verified row is too slow.
    elsewhere: makes the trials of a study; what follows from them is found here.
    """
    studies = studies_of(request)
    base = read_base(Path(request.update), request.environment) if request.update else []
    folder.mkdir(parents=True, exist_ok=True)
    saved.write(folder, REQUEST, request)
    began, status = time.monotonic(), 0
    with Journal(folder) as journal, ahead:
        if journal.damaged:
            click.echo(
                f"{count(journal.damaged, 'damaged line')} of trials.jsonl will be tried again"
            )
        search = Search(device, journal, ahead, timer_of)
        todo = {study: search.left(study) for study in studies}
        total = sum(map(len, todo.values()))
        click.echo(f"{count(total, 'candidate')} for {count(len(studies), 'row')} of the table")
        if ahead.target is None:
            click.echo(
                f"The limits of {device.arch} are not known: nothing is left out unmeasured."
            )
        for study, several in todo.items():
            ahead.begin(study, several)
        with Display(total) as display:
            search.on_tried = lambda trial: _tried(display, trial)
            run = _Run(folder, request, search, display)
            start, is_late = time.monotonic(), False

            def numbers() -> Iterator[int]:
                """The numbers of the studies, in order; none after limit_s seconds."""
                nonlocal is_late
                for number in range(len(studies)):
                    is_late = limit_s is not None and time.monotonic() - start > limit_s
                    if is_late:
                        return
                    yield number

            searched = (
                elsewhere(journal, numbers(), search.on_tried, display.say)
                if elsewhere
                else ((number, "") for number in numbers())
            )
            try:
                for number, failure in searched:
                    if failure:
                        run.failed(failure)
                    else:
                        run.one(studies[number], request.verify[number] if request.verify else None)
                status = LEFT if is_late else 0
            except KeyboardInterrupt:
                status = INTERRUPTED
            except DeviceLost as lost:
                run.failures.append(
                    f"the GPU cannot be used any more after {lost.settings}: {lost}"
                )
            except ClusterError as error:
                run.failures.append(str(error))
        status = status or (FAILED if run.failures else 0)
        table = "" if status or request.verify else f"{request.environment.arch}.json"
        if table:
            write_table(folder / table, request.environment, updated(base, run.rows))
        run.save(table)
        _print_end(folder, journal, run, table, time.monotonic() - began)
    if status in (INTERRUPTED, LEFT) or run.failures:
        ray = " --ray ADDRESS" if elsewhere else ""
        click.echo(
            f"What was measured is kept. To continue: rownorm tune --resume {shlex.quote(str(folder))}{ray}"
        )
    too_slow = any(one.ratio > verify.MOST for one in run.verified)
    return status or int(too_slow)


def _tried(display: Display, trial: Trial) -> None:
    """Count a candidate; say if its results are wrong."""
    if trial.stage == "first":
        display.advance()
    if trial.status == "wrong":
        display.say(f"wrong results, left out: {trial.study} {trial.settings}: {trial.why}")


def _print_end(folder: Path, journal: Journal, run: _Run, table: str, seconds: float) -> None:
    trials = journal.trials
    others = left_out(trials)
    click.echo(
        f"\n{count(n_timed(trials), 'candidate')} timed, {sum(others.values())} left out", nl=False
    )
    click.echo(f"; {duration(seconds)}")
    for cause, n in others.items():
        example = next(one for one in trials if one.is_left_out and one.in_words == cause)
        click.echo(shortened(f"  {n} {cause}, for example: {example.why}", WIDTH))
    for failure in run.failures:
        click.echo(f"Error: {failure}", err=True)
    if run.verified:
        click.echo("\n".join(verify.lines_of(run.verified)))
    if run.left:
        click.echo(f"{count(run.left, 'row')} left")
    if table:
        click.echo(f"wrote {folder / table}")
        click.echo(f"To use it: export ROWNORM_TABLES={folder.resolve()}")
        click.echo(f"Next: rownorm report {shlex.quote(str(folder))}")
