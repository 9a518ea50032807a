"""Traces as the lab's records, and as one file.

A trace has one latency: the mean over calls, each after a synchronization, between two events. It includes what the
host needs to start the call, so it is not comparable with the lab's device time. Records of traces are therefore kept
apart under a device name of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashinfer_bench import Definition, Solution, Trace, TraceSet
from pydantic import ValidationError

from ..data.files import write_whole
from ..data.records import Environment, Record, Status
from ..device.database import database, known
from .dataset import DEFINITIONS, PARTS, Dataset, Problem, first_reason, read
from .definition import definition_named
from .recognize import recognize
from .solutions import label, short_name

CLOCK = "timed by FlashInfer-Bench"
REFERENCE = "reference"  # the provider's name of a Definition's reference
RUN = "FlashInfer-Bench"
FILE = "traces.json"


def records_of(dataset: Dataset) -> tuple[list[Record], list[Problem]]:
    """A record for every trace of a Definition that rownorm serves, and one for its reference; and what is left out."""
    content = dataset.content
    records: list[Record] = []
    problems: list[Problem] = []
    for name, traces in content.traces.items():
        definition = content.definitions[name]
        for trace in traces:
            try:
                records += record_of(definition, content.get_solution(trace.solution), trace)
            except ValueError as reason:
                problems.append(Problem(f"trace of {trace.solution}", f"left out: {reason}"))
    return records, problems


def latest(content: TraceSet) -> list[Trace]:
    """The newest trace of each Solution and workload."""
    traces = [one for of_definition in content.traces.values() for one in of_definition]
    ordered = sorted(traces, key=lambda one: one.evaluation.timestamp)
    return list({(one.workload.uuid, one.solution): one for one in ordered}.values())


def record_of(definition: Definition, solution: Solution | None, trace: Trace) -> Iterator[Record]:
    """The record of a trace, and that of the reference, if it was timed. The Solution's file may be absent."""
    evaluation, performance = trace.evaluation, trace.evaluation.performance
    fields: dict[str, Any] = {
        "case": recognize(definition).case(trace.workload),
        "environment": _environment(evaluation.environment),
        "run": RUN,
        "time": evaluation.timestamp,
    }
    passed = performance is not None and performance.latency_ms > 0
    status: Status = "ok" if passed else "failed"
    if evaluation.status.value.startswith("INCORRECT"):
        status = "wrong"
    last = (evaluation.log.strip().splitlines() or [""])[-1]
    yield Record(
        provider=(
            short_name(str(trace.solution), definition.name)
            if solution is None
            else label(solution)
        ),
        status=status,
        why="" if passed else f"{evaluation.status.value}: {last}".rstrip(": "),
        seconds=[performance.latency_ms * 1e-3] if passed else [],
        **fields,
    )
    if passed and performance.reference_latency_ms > 0:
        seconds = [performance.reference_latency_ms * 1e-3]
        yield Record(provider=REFERENCE, seconds=seconds, **fields)


def _environment(found: Any) -> Environment:
    device = known(found.hardware)
    peak = device.peak_bytes_per_second if device else None
    return Environment(
        device=f"{found.hardware}, {CLOCK}",
        kind="cuda",
        peak_bytes_per_second=float(peak.value) if peak else None,
        peak_source=database().sources[peak.source] if peak else "unknown",
        torch=found.libs.get("torch", ""),
        triton=found.libs.get("triton", ""),
        rownorm="not recorded",
        settings={"runtime": f"CUDA {found.libs['cuda']}"} if "cuda" in found.libs else {},
    )


def read_list(file: Path) -> Dataset:
    """The traces of a ``traces.json``; ValueError if it is none.

    Definitions and Solutions are those of the dataset that it is in. Without one, a Definition is made from its name,
    if that is one of ``rownorm fib export``.
    """
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(listed, list):
        raise ValueError(f"{file} is not a list of traces; rownorm fib run writes one")
    is_dataset = (file.parent / DEFINITIONS).is_dir()
    content, problems = read(file.parent) if is_dataset else (TraceSet(root=file.parent), [])
    traces: dict[str, list[Trace]] = {}
    for number, one in enumerate(listed, start=1):
        where = f"{file.name}, trace {number}"
        try:
            trace = Trace.model_validate(one)
        except ValidationError as error:
            problems.append(Problem(where, first_reason(error)))
            continue
        name = trace.definition
        if name not in content.definitions and (made := definition_named(name)):
            content.definitions[name] = made
        if name not in content.definitions:
            problems.append(Problem(where, f"its Definition {name} is not in {file.parent}"))
        elif not trace.is_workload_trace():
            traces.setdefault(name, []).append(trace)
    parts = {part: getattr(content, part) for part in PARTS} | {"traces": traces}
    return Dataset(TraceSet(root=file.parent, **parts), problems)


def write_traces(dataset: Dataset) -> Path:
    """Write all traces as one JSON list, ``traces.json`` in the dataset folder."""
    content = dataset.content
    listed = [one.model_dump(mode="json") for traces in content.traces.values() for one in traces]
    return write_whole(Path(content.root) / FILE, json.dumps(listed, indent=1) + "\n")
