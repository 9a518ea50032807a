"""``rownorm fib report``: the lab's report, made from the traces and the device times of a dataset folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...data.case import Case
from ...data.measurements import provider_order
from ...data.records import FILE, Reading, Record, read
from ...data.statistics import summarize
from ...data.tables import markdown
from ...data.texts import count, duration, times
from ...fib.check import MAX_RELATIVE_ERROR
from ...fib.dataset import Dataset, Problem
from ...fib.solutions import PACKAGE
from ...fib.traces import REFERENCE, latest, record_of, records_of
from ...page import write

# Seconds below which a call should take, by rows of rms_norm over 4096 fp16 columns: the limits of the course's
# exercise 6. They were written for an A100, and do not say by which clock.
LIMITS = {1: 0.01e-3, 32: 0.02e-3, 128: 0.05e-3, 512: 0.15e-3}
WHY_TWO_CLOCKS = (
    "There are two clocks. FlashInfer-Bench's latency is the mean time between two events around one call, after a "
    "synchronization: the GPU is idle when the call begins, so the host's work to start it is part of the latency. "
    "The lab's device time is that of a CUDA graph of many calls: the GPU's work alone, with cold caches. So the "
    "difference is mostly the host, and it matters most for small batches. A trace has one latency and no spread, so "
    "its speed-ups have no interval."
)
RULE = (
    "PASSED is FlashInfer-Bench's verdict: an element fails only if its error is above 1e-2 and its relative error is, "
    f"too. The course (exercise 6) asks for a relative error below {MAX_RELATIVE_ERROR:g}, which is possible in fp16 "
    "and fp32; one step of bf16 is 4e-3 to 8e-3. Its limits of the time were written for an A100 and do not say by "
    "which clock; it has none for 8 rows. So both clocks are compared with them: FlashInfer-Bench's latency, host "
    "included, and the device time."
)
HEADS = (
    "device",
    "case",
    "shape",
    "Solution",
    "status",
    "max relative error",
    "FlashInfer-Bench's latency",
    "over the reference",
    "the lab's device time",
    "limit, for an A100",
    "held by the latency",
    "held by the device time",
)


def write_report(
    dataset: Dataset, out: Path, *, plots: bool, on_step: Callable[[str], None]
) -> tuple[list[Path], list[Problem]]:
    """Write the report; return its files and what is left out. ValueError if there is nothing to report."""
    folder = Path(dataset.content.root)
    traced, problems = records_of(dataset)
    if not traced:
        raise ValueError(
            f"{folder} has no trace of a norm; rownorm fib run {folder} measures them on a GPU"
        )
    file = folder / FILE
    lab = read(file) if file.exists() else Reading([], [])
    newest, older = _newest(traced)
    # The package runs the same kernels: as an alternative to rownorm it would be rownorm against itself.
    shown = [one for one in (*lab.records, *newest) if one.provider != PACKAGE]
    with write.replacing(out) as temporary:
        files = write.write_report(
            shown,
            temporary,
            damaged=lab.damaged,
            plots=plots,
            on_step=on_step,
            remarks=[WHY_TWO_CLOCKS, *older],
            addendum=section(dataset, lab.records),
        )
    return files, problems


def section(dataset: Dataset, lab: Sequence[Record]) -> str:
    """The part of ``analysis.md`` that has both clocks side by side, in Markdown. lab: records with device times."""
    content = dataset.content
    device_times = {
        (one.environment.device, _place(one.case), one.provider): summarize(one.seconds).median
        for one in lab
        if one.seconds
    }
    lines: dict[tuple[object, ...], tuple[str, ...]] = {}
    for trace in latest(content):
        evaluation, performance = trace.evaluation, trace.evaluation.performance
        definition = content.definitions[trace.definition]
        try:
            record, *_ = record_of(definition, content.get_solution(trace.solution), trace)
        except ValueError:  # named in ``records_of``
            continue
        case, hardware = record.case, evaluation.environment.hardware
        seconds = device_times.get((hardware, _place(case), record.provider))
        order = (hardware, case.kind, case.cols, case.rows, provider_order(record.provider))
        lines[order] = (
            hardware,
            case.kind,
            f"{case.rows} x {case.cols}",
            record.provider,
            evaluation.status.value,
            _error(evaluation.correctness.max_relative_error) if evaluation.correctness else "",
            duration(performance.latency_ms * 1e-3) if performance else "",
            times(performance.speedup_factor) if performance else "",
            "not measured" if seconds is None else duration(seconds),
            *_held(case, performance.latency_ms * 1e-3 if performance else None, seconds),
        )
    table = markdown(HEADS, [lines[order] for order in sorted(lines)])  # type: ignore[type-var]
    return "\n\n".join(["## FlashInfer-Bench", WHY_TWO_CLOCKS, RULE, table]) + "\n"


def _newest(traced: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The newest record of each Solution and workload, and what is left out, in words.

    The reference is timed again with each Solution, so its older times need no words.
    """
    ordered = sorted(traced, key=lambda one: one.time)
    newest = {(one.environment.device, one.case.key, one.provider): one for one in ordered}
    solutions = [one for one in ordered if one.provider != REFERENCE]
    older = len(solutions) - sum(one.provider != REFERENCE for one in newest.values())
    said = f"{count(older, 'older trace')} of the same Solution and workload left out."
    return list(newest.values()), [said] if older else []


def _place(case: Case) -> tuple[str, int, int]:
    return case.kind, case.rows, case.cols


def _error(error: float) -> str:
    beyond = "" if error < MAX_RELATIVE_ERROR else f" (not below {MAX_RELATIVE_ERROR:g})"
    return f"{error:.2g}{beyond}"


def _held(case: Case, latency: float | None, device_time: float | None) -> tuple[str, str, str]:
    """``below 10.0 µs``, ``no``, ``yes``: the limit, and whether each time is below it; empty without a limit."""
    named = case.kind == "rms_norm forward fp16" and case.cols == 4096
    limit = LIMITS.get(case.rows) if named else None
    if limit is None:
        return "", "", ""
    verdicts = (
        "not measured" if seconds is None else "yes" if seconds < limit else "no"
        for seconds in (latency, device_time)
    )
    return (f"below {duration(limit)}", *verdicts)  # type: ignore[return-value]
