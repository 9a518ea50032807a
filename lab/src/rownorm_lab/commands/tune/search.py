"""Search: of all candidates of a study, leave out, check, time, and keep the fastest.

    1. candidates whose compiled code spills or does not suit the multiprocessor are left out (``static``)
    2. the results of every other candidate are checked, and it is timed in a few rounds
    3. the FINALISTS are timed again, in more rounds
    4. forward: of those that are nearly as fast as the fastest, the fastest with few rows is chosen

Every step is a line of the journal, and a step that is there is not repeated: an interrupted search is resumed by
running it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rownorm.inside import Device

from ...data.texts import count
from ...measure.bench import in_one_line
from .candidates import Settings, candidates
from .journal import Stage, Status, Trial, Trials, left_out, n_timed
from .static import CompiledCandidate
from .study import TuningCase
from .table import TableRow, row_of
from .timer import FEW_ROWS, DeviceLost, Timer

FINALISTS = 6  # settings that are timed a second time
FIRST_ROUNDS, FINAL_ROUNDS, CEILING_ROUNDS = 5, 15, 9
NEARLY = 0.997  # of the fastest counts as equal: repeated measurements differ by as much
BATCH = 16  # candidates that are checked together: they share the exact values

Timed = tuple[float, Settings]  # seconds of one call
Compile = Callable[[TuningCase, Sequence[Settings]], Iterable[CompiledCandidate | None]]


class Choice(NamedTuple):
    """The settings that a search chose. reason: in words."""

    seconds: float
    settings: Settings
    runner_up: Timed | None
    reason: str
    first: list[Timed]  # all that were timed, the fastest first


class Search:
    """Searches studies one after the other."""

    def __init__(
        self,
        device: Device,
        journal: Trials,
        compile: Compile,
        timer_of: Callable[[TuningCase], Timer],
        on_tried: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        """compile: what the compiled code of candidates says, None where it is not known."""
        self.device, self.journal = device, journal
        self.compile, self.timer_of, self.on_tried = compile, timer_of, on_tried
        self._timer: tuple[TuningCase, Timer] | None = None

    def rows(self, study: TuningCase) -> list[TableRow]:
        """The rows of the table for one width: the fastest settings, with their figures.

        If they are ``looped``, with chunks that the width fills, there is a second row for widths that do not fill
        them.
        """
        chosen = self.best(study)
        rows = [self._row(study, chosen)]
        if chosen.settings["regime"] == "looped":
            others = [pair[1] for pair in chosen.first if pair[1]["regime"] != "looped"]
            between = study._replace(n_cols=width_between(study.n_cols))
            if final := self._timed(between, "final", others[:FINALISTS], FINAL_ROUNDS):
                second = Choice(*final[0], _next(final, final[0][1]), self._why(study), final)
                row = self._row(between, second)
                rows.append(row | {"max_cols": study.n_cols, "measured_cols": between.n_cols})
        return rows

    def best(self, study: TuningCase) -> Choice:
        """The fastest settings; ValueError if none can be used."""
        todo = self.left(study)
        for settings, found in zip(todo, self.compile(study, todo), strict=True):
            if found is not None and found.cause:
                figures = found._asdict()
                del figures["programs"]  # which the occupancy says
                self._add(study, "first", settings, status="left out", **figures)
        usable = [
            settings
            for settings in candidates(study, self.device)
            if (trial := self.journal.find(study, "first", settings)) is None
            or trial.status == "ok"
        ]
        first = self._timed(study, "first", usable, FIRST_ROUNDS)
        if not first:
            causes = ", ".join(f"{n} {cause}" for cause, n in left_out(self._trials(study)).items())
            raise ValueError(f"{study.key}: no settings can be used ({causes})")
        final = self._timed(study, "final", [pair[1] for pair in first[:FINALISTS]], FINAL_ROUNDS)
        if not final:
            raise ValueError(f"{study.key}: the fastest settings fail when they are timed again")
        chosen, reason = final[0], self._why(study)
        equals = [pair for pair in final if final[0][0] > NEARLY * pair[0]]
        if study.direction == "forward" and len(equals) > 1:
            chosen = min(equals, key=lambda pair: self._few_rows(study, pair[1]))
            reason += f"; fastest with {FEW_ROWS} rows of {len(equals)} that are equally fast"
        return Choice(*chosen, _next(final, chosen[1]), reason, first)

    def left(self, study: TuningCase) -> list[Settings]:
        """The candidates that were not tried yet."""
        return [
            settings
            for settings in candidates(study, self.device)
            if self.journal.find(study, "first", settings) is None
        ]

    def beside(self, study: TuningCase, found: Settings, shipped: Settings) -> tuple[float, float]:
        """Seconds with the settings that were found, and with those that are shipped, in turns."""
        known = [self.journal.find(study, "found", found)]
        known += [self.journal.find(study, "shipped", shipped)]
        times = [trial.seconds for trial in known if trial and trial.seconds]
        if len(times) < 2:
            times = self.timer(study).seconds_in_turns([found, shipped], FINAL_ROUNDS)
            self._add(study, "found", found, seconds=times[0])
            self._add(study, "shipped", shipped, seconds=times[1])
        return times[0], times[1]

    def timer(self, study: TuningCase) -> Timer:
        """The timer of a study, which holds its inputs; that of the study before is freed."""
        if self._timer is None or self._timer[0] != study:
            self._timer = None
            self._timer = (study, self.timer_of(study))
        return self._timer[1]

    def _timed(
        self, study: TuningCase, stage: Stage, several: Sequence[Settings], rounds: int
    ) -> list[Timed]:
        """Check and time those that are not in the journal. All that have a time, the fastest first."""
        todo = [one for one in several if self.journal.find(study, stage, one) is None]
        for start in range(0, len(todo), BATCH):
            batch = todo[start : start + BATCH]
            unchecked = [one for one in batch if not self.journal.is_checked(study, one)]
            results = self._checked(study, stage, unchecked) if unchecked else []
            for settings, (status, why) in zip(unchecked, results, strict=True):
                if status != "ok":
                    self._add(study, stage, settings, status=status, why=why)
            for settings in batch:
                if self.journal.find(study, stage, settings) is None:
                    self._time(study, stage, settings, rounds)
        found = [self.journal.find(study, stage, one) for one in several]
        times = [(one.seconds, one.settings) for one in found if one and one.seconds]
        return sorted(times, key=lambda pair: pair[0])

    def _checked(
        self, study: TuningCase, stage: Stage, several: Sequence[Settings]
    ) -> list[tuple[Status, str]]:
        try:
            return self.timer(study).check(several)
        except DeviceLost as lost:  # noted, so that a resumed search leaves these settings out
            self._add(study, stage, lost.settings, status="failed", why=str(lost))
            raise

    def _time(self, study: TuningCase, stage: Stage, settings: Settings, rounds: int) -> None:
        try:
            seconds = self.timer(study).seconds(settings, rounds)
        except Exception as error:  # of the driver or the launch
            self._add(study, stage, settings, status="failed", why=in_one_line(error))
            if isinstance(error, DeviceLost):
                raise
        else:
            self._add(study, stage, settings, seconds=seconds)

    def _few_rows(self, study: TuningCase, settings: Settings) -> float:
        trial = self.journal.find(study, "few rows", settings)
        if trial is None:
            seconds = self.timer(study).seconds_of_few(settings, FINAL_ROUNDS)
            trial = self._add(study, "few rows", settings, seconds=seconds)
        return trial.seconds or 0.0

    def _row(self, study: TuningCase, chosen: Choice) -> TableRow:
        ceiling = self.journal.find(study, "ceiling", {})
        if ceiling is None:
            seconds = self.timer(study).ceiling_seconds(CEILING_ROUNDS)
            ceiling = self._add(study, "ceiling", {}, seconds=seconds)
        seconds, settings, runner_up, reason, _ = chosen
        return row_of(study, seconds, settings, ceiling.seconds, runner_up, reason)

    def _why(self, study: TuningCase) -> str:
        trials = self._trials(study)
        others = sum(left_out(trials).values())
        timed = count(n_timed(trials), "candidate")
        return f"fastest of {timed}" + (f", {others} left out" if others else "")

    def _trials(self, study: TuningCase) -> list[Trial]:
        return [trial for trial in self.journal.trials if trial.study == study.key]

    def _add(self, study: TuningCase, stage: Stage, settings: Settings, **outcome: Any) -> Trial:
        """Keep a trial and report it. outcome: other fields of ``Trial``."""
        trial = Trial(study=study.key, stage=stage, settings=settings, **outcome)
        self.journal.keep(trial)
        self.on_tried(trial)
        return trial


def width_between(n_cols: int) -> int:
    """A width between this one and the next narrower one of WIDTHS, which does not fill chunks."""
    return n_cols * 7 // 8


def _next(final: Sequence[Timed], chosen: Settings) -> Timed | None:
    return next((pair for pair in final if pair[1] != chosen), None)
