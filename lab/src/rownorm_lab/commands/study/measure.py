"""Measuring a study: for each setting, the stages in turns, then memory and kernels of each stage."""

from __future__ import annotations

import gc
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ...data.runs import run_id, timestamp
from ...data.studies import StageRecord, Study
from ...device.environment import environment
from ...measure.timing import Marks, in_turns, step_seconds
from ...models import Stage
from ...models.blocks import Norm
from ...models.tasks import TASKS
from ...models.trainer import TrainingRequest
from ...models.workload import SEED, Workload, run_under
from ...profilers.trace import StepProfile, read_trace

PROFILED_STEPS = 2
WARM_UP = 3  # steps before the first that counts
# By which the first losses of two stages may differ: far more than bf16 makes them.
TOLERANCE = 0.02


def new_study(task: str, size: str, steps: int, samples: int | None = None) -> Study:
    """A study of this machine without records. samples: of a step; None: those of the size."""
    config = TASKS[task].configs[size]
    with torch.device("meta"):
        model = TASKS[task].model(config, "fused")
    n_samples = TrainingRequest(task, size, "fused", SEED, samples=samples).n_samples
    return Study(
        task=task,
        size=size,
        steps=steps,
        samples=samples,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        units=n_samples * TASKS[task].units_of(config),
        unit=TASKS[task].unit,
        environment=environment(),
    )


def measure(
    study: Study,
    setting: str,
    stages: Sequence[Stage],
    on_step: Callable[[str], None] = lambda _: None,
) -> Iterator[StageRecord]:
    """Time the stages in turns; then yield the record of each, with its memory and its kernels."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run = run_id()
    workloads: dict[Stage, Workload] = {}
    fields: dict[Stage, dict[str, Any]] = {}
    if setting == "compiled":
        torch.compiler.reset()  # code of another model counts against the limit of recompilations
    for stage in stages:
        on_step(f"{setting}: preparing {stage}")
        try:
            workload = Workload(study.task, study.size, stage, setting, device, study.samples)
            fields[stage] = {"precision": workload.precision, "loss": float(workload.step())}
            for _ in range(WARM_UP - 1):
                workload.step()
            workloads[stage] = workload
        except RuntimeError as error:  # out of memory, or torch.compile fails
            fields[stage] = _failure(fields.get(stage, {}), "failed", error)
    _check_losses(fields)
    on_step(f"{setting}: timing {study.steps} steps of each stage in turns")
    seconds = _time(workloads, study.steps, device)
    for stage in stages:
        if stage in workloads:
            on_step(f"{setting}: memory and kernels of {stage}")
            fields[stage] |= seconds[stage]
            try:
                peak, found = workloads[stage].peak_bytes(), profile_of(workloads[stage])
                fields[stage] |= {"peak_bytes": peak, "kernels": found.kernels}
                fields[stage]["attribution"] = found.attribution
            except RuntimeError as error:
                fields[stage] = _failure(fields[stage], "failed", error)
        yield StageRecord(stage=stage, setting=setting, run=run, time=timestamp(), **fields[stage])
    workloads.clear()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _time(
    workloads: dict[Stage, Workload], steps: int, device: str
) -> dict[Stage, dict[str, list[float]]]:
    """Seconds of every step by stage: forward, backward, step and host."""
    names = ("forward", "backward", "step", "host")
    seconds: dict[Stage, dict[str, list[float]]] = {
        stage: {name: [] for name in names} for stage in workloads
    }
    for _, (stage, workload) in in_turns(list(workloads.items()), steps if workloads else 0):
        marks = Marks(device)
        whole, on_host = step_seconds(lambda w=workload, m=marks: w.step(m), device)  # type: ignore[misc]
        forward, backward, _ = marks.seconds()
        for name, value in zip(names, (forward, backward, whole, on_host), strict=True):
            seconds[stage][name].append(value)
    return seconds


def _check_losses(fields: dict[Stage, dict[str, Any]]) -> None:
    """Mark the stages whose first loss is not finite or differs from that of the first stage."""
    losses = {stage: one["loss"] for stage, one in fields.items() if "loss" in one}
    expected = next(iter(losses.values()), 0.0)
    for stage, loss in losses.items():
        if not (math.isfinite(loss) and abs(loss - expected) <= TOLERANCE * abs(expected)):
            reason = (
                f"the loss of the first step is {loss:.4f}, that of another stage {expected:.4f}"
            )
            fields[stage] = _failure(fields[stage], "wrong", reason)


def _failure(fields: dict[str, Any], status: str, error: object) -> dict[str, Any]:
    """``fields`` with a status and its reason, in one line."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return {"precision": "", **fields, "status": status, "why": reason[:300]}


def profile_of(workload: Workload) -> StepProfile:
    """Profile some steps of a workload."""
    activities = [ProfilerActivity.CPU]
    if workload.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities)
    run_under(profiler, workload, PROFILED_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(errors="replace"))["traceEvents"]
    n_norms = sum(isinstance(module, Norm) for module in workload.trainer.model.modules())
    return read_trace(events, PROFILED_STEPS, n_norms, compiled=workload.setting == "compiled")
