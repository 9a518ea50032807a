"""Exercise 6: RMSNorm as a Solution of FlashInfer-Bench: kernel, Solution, benchmark, analysis."""

from __future__ import annotations

import ast
import json
import math
import re
import tempfile
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rownorm_lab.data.records import Record
from rownorm_lab.data.records import read as read_records
from rownorm_lab.data.statistics import summarize
from rownorm_lab.data.texts import duration, gigabytes_per_second
from rownorm_lab.fib.package import missing

from ..grade import Task
from ..grades import Failure, Pending
from ..judge import TriedCase
from ..learner import Learner, LearnerError, honest
from ..wire import Made, Model
from .norms import Norm, no_spills, norm_case, passes_over_rows, wide_accesses

KERNEL, SOLUTION, BENCHMARK = "triton_rmsnorm.py", "create_solution.py", "benchmark.py"
ANALYSIS, TRACES, DEVICE_TIMES = "analysis.md", "traces.json", "records.jsonl"
BATCHES = (1, 8, 32, 128, 512)
TRIED = (1, 8)  # batches that the grader runs
COLS, EPS = 4096, 1e-6
FIGURES = {  # of the analysis, from the learner's traces
    "slowdown_from_1_to_512": "the device time of batch 512 over that of batch 1",
    "percent_of_peak_at_512": "the bytes of x, weight and out over the device time, as a share of the peak bandwidth",
}
LEAST_S = 1e-6  # no launch is shorter
MOST_BYTES_PER_S = 30e12  # no GPU's L2 is faster
FIB_S = 120.0  # FlashInfer-Bench is imported, and it builds


_case = partial(norm_case, cols=COLS, dtype="fp16", eps=EPS)
NORM = Norm(  # it writes into its last argument
    KERNEL,
    "run",
    lambda case, t: (t.x, t.weight, case.eps, Made((case.rows, case.cols), t.x.dtype)),
    answer=3,
)


def machine_code(learner: Learner) -> None:
    """One pass, 16 bytes for each thread, no spills."""
    found = NORM.compiled(learner, _case(512))
    no_spills(found.kernels)
    passes_over_rows(found, 1, "the kernel")
    wide_accesses(found)


def _definition() -> tuple[Any, Any]:
    from rownorm_lab.fib.definition import definition_of, norm_of

    norm = norm_of("course", "rms_norm", COLS, "fp16", EPS)
    return definition_of("course", norm), norm


def _require() -> None:
    if why := missing():
        raise Failure(f"FlashInfer-Bench is missing: {why}")


def _made(learner: Learner) -> Any:
    """The learner's Solution; what pydantic refuses is a Failure."""
    from flashinfer_bench import Solution

    try:
        made = learner.function(SOLUTION, "make_solution")()
    except LearnerError as error:
        if not error.reason:
            raise
        raise Failure(
            f"make_solution: {error.reason}",
            "entry-point" if "entry" in error.reason.lower() else "",
        ) from error
    if not isinstance(made, Model) or made.type_name != "Solution":
        raise Failure(f"make_solution returned {made!r}, expected a flashinfer_bench.Solution")
    return Solution.model_validate_json(made.json)


def fields(learner: Learner) -> None:
    """Name, Definition, sources and entry point."""
    _require()
    made = _made(learner)
    definition, _ = _definition()
    if made.definition != definition.name:
        raise Failure(
            f"definition is {made.definition!r}, expected {definition.name!r}", "wrong-definition"
        )
    if not made.description or not made.author:
        raise Failure("the Solution has no description or no author")
    file, _, function = made.spec.entry_point.partition("::")
    sources = {source.path: source.content for source in made.sources}
    if file not in sources or f"def {function}(" not in sources[file]:
        raise Failure(
            f"entry_point is {made.spec.entry_point!r}; sources: {', '.join(sources)}",
            "entry-point",
        )
    for path, content in sources.items():
        honest(path, ast.parse(content))
    if sources.get(KERNEL, "").strip() != learner.text(KERNEL).strip():
        raise Failure(f"{KERNEL} in the Solution is not the file in your folder", "sources-missing")


def builds(learner: Learner) -> None:
    """FlashInfer-Bench builds it away from the learner's folder and runs it; the lab's check judges it."""
    _require()
    from rownorm_lab.fib.dataset import write_new
    from rownorm_lab.fib.definition import workloads_of

    made = _made(learner)
    definition, norm = _definition()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "dataset"
        write_new(folder, definition, workloads_of(definition, norm, TRIED, EPS), [made])
        for rows, status, why in learner.own("check_dataset", folder, learner.device):
            if status != "ok":
                where = made.name if rows is None else f"{made.name}, {rows} rows"
                raise Failure(f"{where}: {status}: {why}", _why(why))
        operators, kernels, foreign = learner.own("what_ran", folder, learner.device)
    entry = made.spec.entry_point
    if operators or foreign:
        what = f"torch's {operators[0]}" if operators else "something beside your kernel"
        raise Failure(f"{entry}: {what} computed the result", "torch-norm")
    if not kernels:
        raise Failure(f"{entry} returned without a kernel", "no-kernel")


def _why(reason: str) -> str:
    if any(word in reason for word in ("ModuleNotFound", "ImportError", "No module")):
        return "sources-missing"
    return (
        "destination" if any(word in reason for word in ("argument", "parameters", "None")) else ""
    )


def workloads(learner: Learner) -> None:
    """Every batch, with eps as a scalar."""
    _require()
    from rownorm_lab.fib.dataset import read

    write = learner.function(BENCHMARK, "write_dataset")
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary) / "dataset")
        found = read(Path(temporary) / "dataset")
    if found.problems:
        raise Failure(f"the dataset has a bad file: {found.problems[0]}")
    definition, norm = _definition()
    content = found.content
    if definition.name not in content.definitions:
        raise Failure(
            f"the dataset has {', '.join(content.definitions)}, expected {definition.name}",
            "wrong-definition",
        )
    given = [one.workload for one in content.workloads.get(definition.name, [])]
    _require_batches({one.axes.get("batch") for one in given}, "there is no workload")
    for one in given:
        try:
            norm.eps_of(one)
        except ValueError as error:
            raise Failure(str(error), "eps-random") from error
    mine = _made(learner).name
    names = {one.name for one in content.solutions.get(definition.name, [])}
    if mine not in names:
        raise Failure("your Solution is not in the dataset")
    if names == {mine}:
        raise Failure("the dataset has no other Solution than yours", "no-baseline")
    _right_reference(learner, content.definitions[definition.name].reference)


def _right_reference(learner: Learner, code: str) -> None:
    """The Definition's reference computes RMSNorm; traces are compared with what it gives."""
    x, weight = torch.randn(3, COLS, dtype=torch.float64), torch.rand(COLS, dtype=torch.float64)
    exact = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight
    found = learner.own("reference", code, x.half(), weight.half(), EPS)
    if not torch.allclose(found.double(), exact, rtol=1e-2, atol=1e-2):
        raise Failure(
            "the reference of the Definition does not give x / sqrt(mean(x^2) + eps) * weight",
            "wrong-reference",
        )


def _traces(learner: Learner) -> list[Any]:
    """The learner's traces of its own Solution."""
    _require()
    from flashinfer_bench import Trace

    path = learner.folder / TRACES
    if not path.exists() and learner.gpu:
        raise Failure(
            f"still to do: {TRACES} is not there. This machine has a GPU: run python {BENCHMARK} in "
            f"{learner.folder}, which writes it, then check again"
        )
    if not path.exists():
        raise Pending(
            f"{TRACES} is not there: run python {BENCHMARK} on a machine with a GPU. These points wait"
        )
    try:
        listed = [Trace.model_validate(one) for one in json.loads(path.read_text())]
    except ValueError as error:
        raise Failure(f"{TRACES} cannot be read: {str(error).splitlines()[0]}") from error
    name = _made(learner).name
    mine = [one for one in listed if one.solution == name]
    for one in mine:
        if why := _not_measured(one, listed):
            batch = one.workload.axes.get("batch")
            raise Failure(
                f"{TRACES}, your Solution with batch {batch}: {why}. Run python {BENCHMARK}, which writes it",
                "hand-written",
            )
    return mine


def _not_measured(trace: Any, listed: list[Any]) -> str:
    """Why FlashInfer-Bench cannot have written a trace; empty if it can. A careful forgery is not found."""
    found, performance = trace.evaluation, trace.evaluation and trace.evaluation.performance
    if performance is None:
        return ""  # it failed, and counts for nothing
    seconds = performance.latency_ms * 1e-3
    if not {"torch", "triton"} <= found.environment.libs.keys():
        return "its environment does not name the versions of torch and Triton"
    if seconds <= 0 or not math.isclose(
        performance.speedup_factor * performance.latency_ms,
        performance.reference_latency_ms,
        rel_tol=1e-3,
    ):
        return "speedup_factor is not reference_latency_ms over latency_ms"
    moved = _case(trace.workload.axes["batch"]).compulsory_bytes
    if seconds < LEAST_S or moved / seconds > MOST_BYTES_PER_S:
        return f"{performance.latency_ms:g} ms is less than a launch takes, or than the bytes do"
    if float(f"{performance.latency_ms:.4g}") == performance.latency_ms:
        return "its latency has four digits or fewer; a measured mean has more"
    try:
        datetime.fromisoformat(found.timestamp)
    except ValueError:
        return f"its timestamp {found.timestamp!r} is no time"
    together = [
        one
        for one in listed
        if one.solution != trace.solution
        and one.workload.axes == trace.workload.axes
        and one.evaluation is not None
        and one.evaluation.performance is not None
    ]
    if not together:
        return "the baseline has no trace of this batch; both are measured in one run"
    if all(
        one.evaluation.performance.reference_latency_ms != performance.reference_latency_ms
        for one in together
    ):
        return "the reference is measured once for a batch, but the baseline's trace has another time of it"
    return ""


def traced(learner: Learner) -> None:
    """A PASSED trace for every batch, and its device time."""
    _require_batches(_passed(learner), "no PASSED trace of your Solution")
    _require_batches(_device_times(learner), f"{DEVICE_TIMES} has no device time of your Solution")


def _require_batches(found: Collection[int], lacking: str) -> None:
    """Failure if one is not there. lacking: what it is, in words."""
    if absent := sorted(set(BATCHES) - set(found)):
        raise Failure(f"{lacking} with batch {', '.join(map(str, absent))}", "batches")


def _passed(learner: Learner) -> dict[int, Any]:
    """The PASSED traces of the learner's own Solution, by batch."""
    return {one.workload.axes["batch"]: one for one in _traces(learner) if one.is_successful()}


def _device_times(learner: Learner) -> dict[int, Record]:
    """The lab's records of the learner's Solution, by batch. They are written with the traces."""
    from rownorm_lab.fib.solutions import label

    traces = _passed(learner)
    path = learner.folder / DEVICE_TIMES
    if not path.exists():
        raise Failure(
            f"{DEVICE_TIMES} is not there: python {BENCHMARK} writes it beside {TRACES}, with times of the device. An "
            f"older {BENCHMARK} does not: its main() is the starter's, so move it away and rownorm learn start 6"
        )
    found = read_records(path).records
    mine = {one.case.rows: one for one in found if one.provider == label(_made(learner))}
    for batch, record in mine.items():
        if record.status != "ok" or not record.seconds:
            raise Failure(f"{DEVICE_TIMES}, batch {batch}: {record.status}: {record.why}")
        if batch in traces and (why := _not_timed(record, traces[batch], found)):
            raise Failure(
                f"{DEVICE_TIMES}, batch {batch}: {why}. Run python {BENCHMARK}, which writes it",
                "hand-written",
            )
    return mine


def _not_timed(record: Record, trace: Any, listed: Sequence[Record]) -> str:
    """Why the lab cannot have measured a record beside a trace; empty if it can."""
    performance, environment = trace.evaluation.performance, trace.evaluation.environment
    seconds, moved = summarize(record.seconds).median, record.case.compulsory_bytes
    if record.method is None or len(record.seconds) != record.method.rounds:
        return "it has not one time for each round"
    if len(record.seconds) > 2 and len(set(record.seconds)) == 1:
        return "all rounds took the same time"
    if record.environment.device != environment.hardware:
        return f"it was measured on {record.environment.device}, and the trace on {environment.hardware}"
    if seconds > performance.latency_ms * 1e-3:
        return "the device alone took longer than the call with its launch"
    if moved / seconds > MOST_BYTES_PER_S:
        return f"{duration(seconds)} is less than the bytes take"
    together = {one.provider for one in listed if one.run == record.run and one.seconds}
    return "" if len(together) > 1 else "nothing else was measured in the same run"


def figures_of(text: str) -> dict[str, str]:
    """The lines ``name: value`` of an analysis."""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith(("#", "<")))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _figure(found: dict[str, str], name: str) -> float:
    if not found.get(name):
        raise Failure(f"{ANALYSIS} has no line '{name}: NUMBER'", "no-answer")
    try:
        return float(found[name].split()[0].rstrip("%"))
    except ValueError:
        raise Failure(f"{ANALYSIS}: {name} is {found[name]!r}, expected a number", "toml") from None


def intensity(learner: Learner) -> None:
    """Flops for each byte, and what follows from it."""
    found = figures_of(learner.text(ANALYSIS))
    given, right = _figure(found, "flop_per_byte"), _case(512).intensity
    if abs(given / right - 1) > 0.1:
        raise Failure(
            f"flop_per_byte is {given:g}. It is the operations for one element over the bytes for one element, as "
            "part 4 of the text counts them",
            "intensity",
        )
    if not re.match(r"memory\b", found.get("bound_by", "").lower()):
        raise Failure(
            f"bound_by is {found.get('bound_by', '')!r}: a GPU does tens of operations in the time of one byte, and "
            f"you counted {given:g}; write memory or compute",
            "wrong-choice",
        )


def own_figures(learner: Learner) -> str:
    """Share of the peak and scaling, from the learner's own device times; the call with its launch beside them."""
    found = figures_of(learner.text(ANALYSIS))
    records = _device_times(learner)
    traces = _passed(learner)
    if not {1, 512} <= records.keys() & traces.keys():
        raise Failure(f"{TRACES} or {DEVICE_TIMES} lacks batch 1 or 512", "batches")
    one, many = (summarize(records[batch].seconds).median for batch in (1, 512))
    moved, peak = records[512].case.compulsory_bytes, records[512].environment.peak_bytes_per_second
    launched = traces[512].evaluation.performance.latency_ms * 1e-3
    right = {"slowdown_from_1_to_512": many / one}
    if peak:
        right["percent_of_peak_at_512"] = 100 * moved / many / peak
    for name, value in right.items():
        given = _figure(found, name)
        if abs(given / value - 1) > 0.05:
            raise Failure(
                f"{name} is {given:g}, which does not follow from {DEVICE_TIMES}: {FIGURES[name]}. A call with its "
                f"launch takes {duration(launched)} at batch 512, the device {duration(many)}",
                "not-your-figures",
            )
    return (
        f"batch 512: {duration(many)} on the device, {gigabytes_per_second(moved / many)}; {duration(launched)} with "
        f"the launch on the host, by FlashInfer-Bench, which would be {gigabytes_per_second(moved / launched)}"
    )


TASKS = [
    Task(
        "kernel",
        "values",
        NORM.trying(
            TriedCase(_case(3)),
            TriedCase(_case(2, eps=0.05), data="near_eps"),
            TriedCase(_case(2), scale=300.0, habit="low-precision"),
        ),
    ),
    Task("kernel", "one pass, 16-byte accesses", machine_code, ("compile",)),
    Task("solution", "fields", fields, ("interpret",), FIB_S),
    Task("solution", "built and run by FlashInfer-Bench", builds, limit_s=FIB_S),
    Task("benchmark", "workloads", workloads, ("interpret",), FIB_S),
    Task("benchmark", "traces", traced, ("interpret",)),
    Task("analysis", "arithmetic intensity", intensity, ("interpret",)),
    Task("analysis", "your own figures", own_figures, ("interpret",)),
]
