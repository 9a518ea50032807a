"""``rownorm fib report``: the lab's report, made from the traces and the device times of a dataset folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...data.case import Case
from ...data.measurements import provider_order
from ...data.records import FILE, Reading, Record, read
from ...data.statistics import summarize
from ...data.tables import markdown
from ...data.texts import duration, times
from ...fib.check import MAX_RELATIVE_ERROR
from ...fib.dataset import Dataset, Problem
from ...fib.recognize import NotServed
from ...fib.solutions import PACKAGE
from ...fib.traces import latest, record_of, records_of
from ...page.write import replace_report

# Seconds of device time that the seed expects, by rows of rms_norm over 4096 fp16 columns.
EXPECTED = {1: 0.01e-3, 32: 0.02e-3, 128: 0.05e-3, 512: 0.15e-3}
WHY_TWO_CLOCKS = (
    "There are two clocks. FlashInfer-Bench's latency is the mean time between two events around one call, after a "
    "synchronization: the GPU is idle when the call begins, so the host's work to start it is part of the latency. "
    "The lab's device time is that of a CUDA graph of many calls: the GPU's work alone, with cold caches. So the "
    "difference is mostly the host, and it matters most for small batches. A trace has one latency and no spread, so "
    "its speed-ups have no interval."
)
RULE = (
    "PASSED is FlashInfer-Bench's verdict: an element fails only if its error is above 1e-2 and its relative error is, "
    f"too. The seed asks for a relative error below {MAX_RELATIVE_ERROR:g}, which is possible in fp16 and fp32; one "
    "step of bf16 is 4e-3 to 8e-3. The seed's latencies are device times; it has none for 8 rows."
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
    "the seed expects",
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
    # The package runs the same kernels: as an alternative to rownorm it would be rownorm against itself.
    shown = [one for one in (*lab.records, *traced) if one.provider != PACKAGE]
    files = replace_report(
        Reading(shown, lab.damaged),
        out,
        plots=plots,
        on_step=on_step,
        remarks=[WHY_TWO_CLOCKS],
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
        except (NotServed, ValueError):  # named in ``records_of``
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
            _expected(case, seconds),
        )
    table = markdown(HEADS, [lines[order] for order in sorted(lines)])  # type: ignore[type-var]
    return "\n\n".join(["## FlashInfer-Bench", WHY_TWO_CLOCKS, RULE, table]) + "\n"


def _place(case: Case) -> tuple[str, int, int]:
    return case.kind, case.rows, case.cols


def _error(error: float) -> str:
    beyond = "" if error < MAX_RELATIVE_ERROR else f" (not below {MAX_RELATIVE_ERROR:g})"
    return f"{error:.2g}{beyond}"


def _expected(case: Case, seconds: float | None) -> str:
    """``below 10.0 µs: yes``, for the cases that the seed names."""
    named = case.kind == "rms_norm forward fp16" and case.cols == 4096
    limit = EXPECTED.get(case.rows) if named else None
    if limit is None:
        return ""
    verdict = "not measured" if seconds is None else "yes" if seconds < limit else "no"
    return f"below {duration(limit)}: {verdict}"
