"""What a search has tried: ``trials.jsonl``, one line for each trial. A resumed search finds its trials there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Self

import msgspec

from ...data.records import Writer
from .candidates import Settings
from .study import TuningCase

FILE = "trials.jsonl"
Stage = Literal["first", "final", "few rows", "ceiling", "shipped", "found"]
Status = Literal["ok", "left out", "wrong", "failed"]


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that were tried for a study, or left out because of their compiled code."""

    study: str
    stage: Stage
    settings: Settings = {}
    status: Status = "ok"
    why: str = ""
    cause: str = ""  # of one that was left out: see ``static``
    seconds: float | None = None  # device time of one call
    registers: int | None = None  # of a thread
    spills: int | None = None  # bytes of a thread
    occupancy: float | None = None
    where: str = ""  # host and GPU, if it was tried on a cluster

    @property
    def key(self) -> tuple[str, str, str]:
        """Its identity: a trial is made once."""
        return self.study, self.stage, key_of(self.settings)

    @property
    def is_left_out(self) -> bool:
        """Whether it is a candidate without a time."""
        return self.stage == "first" and self.status != "ok"

    @property
    def in_words(self) -> str:
        """Why a candidate has no time."""
        return self.cause or {"wrong": "gives wrong results", "failed": "fails"}[self.status]


def key_of(settings: Settings) -> str:
    """Settings as a text; equal settings have equal texts."""
    return json.dumps(settings, sort_keys=True)


class Trials:
    """Trials in memory. keep: is called with each new one."""

    def __init__(self, trials: Sequence[Trial], keep: Callable[[Trial], None]) -> None:
        self._trials = {trial.key: trial for trial in trials}
        self._keep = keep

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order in which they were made."""
        return list(self._trials.values())

    def find(self, study: TuningCase, stage: Stage, settings: Settings) -> Trial | None:
        """The trial of these settings, or None."""
        return self._trials.get((study.key, stage, key_of(settings)))

    def has(self, trial: Trial) -> bool:
        """Whether there is a trial of the same settings."""
        return trial.key in self._trials

    def is_checked(self, study: TuningCase, settings: Settings) -> bool:
        """Whether the results with these settings were found correct."""
        stages: tuple[Stage, ...] = ("first", "final")
        found = (self.find(study, stage, settings) for stage in stages)
        return any(trial is not None and trial.status == "ok" for trial in found)

    def keep(self, trial: Trial) -> None:
        """Keep a trial that was made here or elsewhere."""
        self._keep(trial)
        self._trials[trial.key] = trial


class Journal(Trials):
    """The trials of a folder. A trial is on the disk when ``keep`` returns."""

    def __init__(self, folder: Path) -> None:
        trials, self.damaged = read(folder)
        self._writer = Writer(folder / FILE, append=True)
        super().__init__(trials, self._writer.write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def read(folder: Path) -> tuple[list[Trial], int]:
    """(the trials of a folder, how many lines cannot be read). The last line of a killed run may be cut off."""
    file = folder / FILE
    if not file.exists():
        return [], 0
    trials, damaged = [], 0
    for line in file.read_bytes().splitlines():
        try:
            trials.append(msgspec.json.decode(line, type=Trial))
        except (msgspec.DecodeError, UnicodeDecodeError):
            damaged += bool(line.strip())
    return trials, damaged


def n_timed(trials: Sequence[Trial]) -> int:
    """How many candidates have a time."""
    return sum(trial.stage == "first" and trial.status == "ok" for trial in trials)


def left_out(trials: Sequence[Trial]) -> dict[str, int]:
    """How many candidates have no time, by cause; the most frequent first."""
    return dict(Counter(one.in_words for one in trials if one.is_left_out).most_common())
