"""The three stages of a model side by side: the same data, step by step in turns."""

from __future__ import annotations

import argparse
import statistics
from typing import NamedTuple

import torch

from ..measure.timing import in_turns, step_seconds
from . import SIZES, STAGES, Stage
from .parallel import World
from .trainer import Trainer, TrainingRequest


class StageResult(NamedTuple):
    """What training in one stage gave. seconds: of every step."""

    stage: Stage
    losses: list[float]
    seconds: list[float]

    @property
    def median(self) -> float:
        """The median time of a step in seconds."""
        return statistics.median(self.seconds)


def compare_stages(task: str, size: str, n_steps: int, amp: str | None = None) -> list[StageResult]:
    """Train every stage for n_steps steps on the GPU, or on the CPU where there is none."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trainers = [
        Trainer(TrainingRequest(task, size, stage, 0, amp), World(), device) for stage in STAGES
    ]
    seconds: dict[Stage, list[float]] = {stage: [] for stage in STAGES}
    for _, trainer in in_turns(trainers, n_steps):
        seconds[trainer.request.stage].append(step_seconds(trainer.step, trainer.device)[0])
    return [
        StageResult(trainer.request.stage, trainer.losses, seconds[trainer.request.stage])
        for trainer in trainers
    ]


def table(results: list[StageResult]) -> str:
    """A line for each stage: the first and the last loss, the time of a step, and the speed beside the first stage."""
    lines = [f"{'stage':10}{'first loss':>12}{'last loss':>12}{'ms per step':>14}{'speed-up':>11}"]
    for one in results:
        speed_up = results[0].median / one.median
        losses = f"{one.losses[0]:12.4f}{one.losses[-1]:12.4f}"
        lines.append(f"{one.stage:10}{losses}{one.median * 1e3:14.2f}{speed_up:10.2f}x")
    return "\n".join(lines)


def main(task: str) -> None:
    """Compare the stages as the arguments of an example script say, and print the table."""
    parser = argparse.ArgumentParser(description="Train the three stages and compare them.")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="(default: tiny)")
    parser.add_argument("--steps", type=int, default=20, help="(default: 20)")
    parser.add_argument("--amp", choices=("bf16",), help="fp32 parameters under autocast")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    print(table(compare_stages(task, options.size, options.steps, amp=options.amp)))
