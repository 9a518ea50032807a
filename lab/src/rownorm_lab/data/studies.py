"""A ``Study``: the stages of one model side by side, in several settings. One JSON file, ``study-<task>.json``.

The stages of a setting were measured in turns, so ``step[i]`` of all of them belong to the same turn and their ratios
are paired. Changing the meaning of a field requires a new ``SCHEMA``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from .files import read_json, write_json
from .records import OURS, Environment
from .statistics import Ratio, Verdict, ratio_of_times, verdict

SCHEMA = 1
MARGIN = 0.01  # less than that of single kernels: steps are long, and stages take turns within milliseconds
Status = Literal["ok", "wrong", "failed"]
# How the kernels of norms were found: see models/ranges.py. "unknown": they could not be told from the others.
Attribution = Literal["ranges", "names", "unknown"]


class KernelTime(msgspec.Struct, frozen=True):
    """A kernel, or on a CPU an operator, in one training step."""

    name: str
    calls: float
    seconds: float
    is_norm: bool


class StageRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stage in one setting."""

    stage: str
    setting: str
    precision: str  # "bf16", "fp32", "autocast bf16"
    status: Status = "ok"
    why: str = ""  # the reason, unless the status is ok
    loss: float | None = None  # of the first step
    forward: list[float] = []  # seconds of forward and loss, one value for each turn
    backward: list[float] = []
    step: list[float] = []  # seconds of forward, loss, backward and update
    host: list[float] = []  # seconds of a step until the host has launched it
    # Parameters, optimizer and the peak of a step; None: not measured.
    peak_bytes: int | None = None
    kernels: list[KernelTime] = []  # largest first
    attribution: Attribution = "unknown"
    run: str = ""  # records of one setting with the same run were measured in turns
    time: str = ""  # UTC, ISO 8601

    @property
    def key(self) -> tuple[str, str]:
        """The setting and the stage."""
        return self.setting, self.stage

    @property
    def kernel_seconds(self) -> float:
        """The time of all kernels of a step."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def norm_share(self) -> float | None:
        """The share of kernel time that norms take; None if it is unknown."""
        if self.attribution == "unknown" or not self.kernels:
            return None
        return sum(one.seconds for one in self.kernels if one.is_norm) / self.kernel_seconds


class Study(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA
):
    """The whole file."""

    task: str
    size: str
    steps: int  # that were timed, of each stage
    parameters: int
    units: int  # tokens or samples of one step
    unit: str
    environment: Environment
    samples: int | None = None  # of a step; None: those of the size
    records: list[StageRecord] = []

    def get(self, setting: str, stage: str) -> StageRecord | None:
        """The record of a stage, if there is one."""
        return next((one for one in self.records if one.key == (setting, stage)), None)

    def with_record(self, record: StageRecord) -> Study:
        """The study with this record in place of an older one of its setting and stage."""
        others = [one for one in self.records if one.key != record.key]
        return msgspec.structs.replace(self, records=[*others, record])

    @property
    def settings(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(one.setting for one in self.records))

    @property
    def date(self) -> str:
        """Of the last record."""
        return max((one.time[:10] for one in self.records), default="")

    @property
    def title(self) -> str:
        """``llama medium: 203.6 M parameters, 8,192 tokens in a step``."""
        noun = self.unit.removesuffix("s") if self.units == 1 else self.unit
        millions = f"{self.parameters / 1e6:.3g} M parameters"
        return f"{self.task} {self.size}: {millions}, {self.units:,} {noun} in a step"


class Comparison(NamedTuple):
    """rownorm beside another stage in one setting. time: the ratio of step times, below 1 if rownorm is faster."""

    setting: str
    other: str
    time: Ratio
    verdict: Verdict
    memory: float | None  # rownorm's peak over the other's


def comparisons(study: Study) -> list[Comparison]:
    """rownorm beside every other stage that was measured in the same turns."""
    found = []
    for other in study.records:
        ours = study.get(other.setting, OURS)
        if ours is None or ours is other or ours.run != other.run:
            continue
        if ours.status == other.status == "ok":
            time = ratio_of_times(ours.step, other.step, paired=True)
            memory = None
            if ours.peak_bytes and other.peak_bytes:
                memory = ours.peak_bytes / other.peak_bytes
            judged = verdict(time, MARGIN)
            found.append(Comparison(other.setting, other.stage, time, judged, memory))
    return found


def file_of(folder: Path, task: str) -> Path:
    """The file of a study in a folder."""
    return folder / f"study-{task}.json"


def studies_in(folder: Path) -> list[Path]:
    """The files of all studies of a folder."""
    return sorted(folder.glob("study-*.json"))


def write_study(folder: Path, study: Study) -> Path:
    """Write the file of a study, whole or not at all."""
    return write_json(file_of(folder, study.task), study)


def read_study(file: Path) -> Study:
    """The study of a file; ValueError with the reason if it cannot be read."""
    return read_json(file, Study, "a study")


def is_measured(study: Study, setting: str, stages: Sequence[str]) -> bool:
    """Whether all of these stages were measured in this setting, in the same turns."""
    found = [study.get(setting, stage) for stage in stages]
    runs = {one.run for one in found if one is not None and one.status == "ok"}
    return all(one is not None and one.status == "ok" for one in found) and len(runs) == 1
