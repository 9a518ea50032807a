"""Studies whose figures have bars: ``rownorm study small``, ``calls`` and ``cpu``.

One run is one JSON file, ``study-small.json``, ``study-calls.json`` or ``study-cpu.json``. Torch and rownorm were
measured in turns, so value i of both belongs to the same turn and their ratios are paired. Changing the meaning of a
field requires a new ``SCHEMA``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from .files import write_whole
from .records import Environment
from .runs import run_id

SCHEMA: Literal[1] = 1


class JudgedFigure(NamedTuple):
    """rownorm beside torch. labels: what was measured, one for each of the study's ``labels``."""

    labels: tuple[str, ...]
    torch: float  # median of the seconds
    rownorm: float
    ratio: float
    bar: float
    holds: bool


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One model in one setting: the seconds of every step, and what the host took, by norms."""

    model: str
    setting: str
    seconds: dict[str, list[float]]
    host_seconds: dict[str, list[float]]
    bars: dict[str, float]

    def ratio(self, norms: str) -> float:
        """How many times as fast a step is as with torch's norms: the median of the ratios within each turn."""
        pairs = zip(self.seconds["torch"], self.seconds[norms], strict=True)
        return median(theirs / ours for theirs, ours in pairs)

    @property
    def figures(self) -> list[JudgedFigure]:
        """One for each kind of norms that has a bar."""
        theirs = median(self.seconds["torch"])
        return [
            JudgedFigure(
                labels=(self.model, self.setting, norms),
                torch=theirs,
                rownorm=median(self.seconds[norms]),
                ratio=(ratio := self.ratio(norms)),
                bar=bar,
                holds=ratio >= bar,
            )
            for norms, bar in self.bars.items()
        ]


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One norm in one setting and direction: seconds of the host for a call in every round, torch's and ours."""

    norm: str
    setting: str
    direction: str
    torch: list[float]
    rownorm: list[float]
    bar: float

    @property
    def ratio(self) -> float:
        """Our cost over torch's: the median of the ratios within each round."""
        pairs = zip(self.rownorm, self.torch, strict=True)
        return median(ours / theirs for ours, theirs in pairs)

    @property
    def figures(self) -> list[JudgedFigure]:
        """The figure of this call, alone in a list."""
        return [
            JudgedFigure(
                labels=(self.norm, self.direction, self.setting),
                torch=median(self.torch),
                rownorm=median(self.rownorm),
                ratio=self.ratio,
                bar=self.bar,
                holds=self.ratio <= self.bar,
            )
        ]


class JudgedStudy(msgspec.Struct, frozen=True, kw_only=True, tag_field="study"):
    """One run: the whole file."""

    name: ClassVar[str]
    title: ClassVar[str]
    labels: ClassVar[tuple[str, ...]]
    ratio_name: ClassVar[str]
    note: ClassVar[str]

    environment: Environment
    conditions: str  # models, shapes, and how many times each was timed
    trial: bool  # nothing is judged
    planned: int  # records of a complete run
    run: str
    time: str  # UTC, ISO 8601
    records: Sequence[StepRecord | CallRecord] = ()
    schema: Literal[1] = SCHEMA

    @property
    def figures(self) -> list[JudgedFigure]:
        """Of all records."""
        return [figure for record in self.records for figure in record.figures]

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured; an interrupted run is not."""
        return len(self.records) == self.planned

    @property
    def holds(self) -> bool:
        """Whether the run is complete and every bar holds; a trial run has nothing to hold."""
        return self.is_complete and (self.trial or all(one.holds for one in self.figures))

    def with_record(self, record: StepRecord | CallRecord) -> JudgedStudy:
        """The study with one more record."""
        return msgspec.structs.replace(self, records=[*self.records, record])


class SmallStudy(JudgedStudy, frozen=True, kw_only=True, tag="small"):
    """Training steps of two small models."""

    name = "small"
    title = "Training steps of two small models"
    labels = ("model", "setting", "norms")
    ratio_name = "speed"
    note = (
        "Kinds of norms take turns, step by step: torch's, rownorm's, and rownorm's with the residual add. A step is "
        "forward and backward. Times are medians. Speed is torch's time over rownorm's, the median of the ratios "
        "within each turn; the bar is the least that it must be."
    )
    records: list[StepRecord] = []


class CallsStudy(JudgedStudy, frozen=True, kw_only=True, tag="calls"):
    """Host cost of one eager call."""

    name = "calls"
    title = "Host cost of one eager call"
    labels = ("norm", "direction", "setting")
    ratio_name = "cost"
    note = (
        "torch's function and rownorm's take turns, round by round. Times are medians of the host's time for one call. "
        "Cost is rownorm's time over torch's, the median of the ratios within each round; the bar is the most that it "
        "may be."
    )
    records: list[CallRecord] = []


class CpuStudy(JudgedStudy, frozen=True, kw_only=True, tag="cpu"):
    """Norms of tensors on a CPU."""

    name = "cpu"
    title = "Norms of tensors on a CPU"
    labels = ("norm", "direction", "setting")
    ratio_name = "cost"
    note = (
        "torch's norm and rownorm's take turns, round by round. Times are medians of one call. Cost is rownorm's time "
        "over torch's, the median of the ratios within each round; the bar is the most that it may be."
    )
    records: list[CallRecord] = []


KINDS: dict[str, type[JudgedStudy]] = {
    study.name: study for study in (SmallStudy, CallsStudy, CpuStudy)
}


def new_judged(
    name: str, environment: Environment, conditions: str, *, trial: bool, planned: int
) -> JudgedStudy:
    """A run that begins now, without records."""
    return KINDS[name](
        environment=environment,
        conditions=conditions,
        trial=trial,
        planned=planned,
        run=run_id(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def file_of(folder: Path, name: str) -> Path:
    """The file of a run in a folder."""
    return folder / f"study-{name}.json"


def judged_in(folder: Path) -> list[Path]:
    """The files of the runs in a folder."""
    return [file for name in KINDS if (file := file_of(folder, name)).exists()]


def write_judged(folder: Path, study: JudgedStudy) -> Path:
    """Write the file of a run, whole or not at all."""
    return write_whole(file_of(folder, study.name), msgspec.json.encode(study))


def read_judged(file: Path) -> JudgedStudy:
    """The run of a file that ``write_judged`` has written; ValueError with the reason if it cannot be read."""
    kind: Any = KINDS[file.stem.removeprefix("study-")]
    try:
        study: JudgedStudy = msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not a study that this rownorm can read: {error}") from None
    return study


def refuse_mixed(runs: Sequence[JudgedStudy]) -> None:
    """ValueError if these runs cannot be shown side by side."""
    for what, values in (
        ("device", [one.environment.device for one in runs]),
        ("conditions", [one.conditions for one in runs]),
    ):
        if len(found := dict.fromkeys(values)) > 1:
            raise ValueError(f"the runs differ in their {what}: {' | '.join(found)}")
    if len({one.run for one in runs}) < len(runs):
        raise ValueError("the same run was named twice")
