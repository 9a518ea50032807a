"""Kernels of a training step, and which of them belong to norms, from the Chrome trace of ``torch.profiler``.

The trace is the profiler's public format. It links a kernel with the call that launched it, by a correlation number,
and every event of the host has its thread and its time. On a CPU, operators take the place of kernels; the time of an
operator is that without the operators that it calls.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from ..data.studies import Attribution, KernelTime
from .chrome import DEVICE, MICROSECOND, Event, is_host_call

NORM = "norm"  # the name of the range that ``models/ranges.py`` records around a norm
# A node of backward, with the sums of its gradients.
EVALUATE = "autograd::engine::evaluate_function"
NAMES = re.compile(r"layer_norm|rms_norm|rownorm::", re.IGNORECASE)
MOST_WITHOUT_LAUNCH = 0.01  # share of kernel time; beyond it nothing is said about norms

Value = TypeVar("Value")


class StepProfile(NamedTuple):
    """The kernels of one step, largest first, and how those of norms were found."""

    kernels: list[KernelTime]
    attribution: Attribution


class StartedCall(NamedTuple):
    """One kernel or operator. thread, time: where and when the host started it."""

    name: str
    seconds: float
    thread: Any
    time: float


def read_trace(
    events: Iterable[Event], steps: int, n_norms: int, *, compiled: bool = False
) -> StepProfile:
    """The kernels of a step, from the events of a trace of so many steps. n_norms: in the model."""
    timed = [event for event in events if event.get("ph") == "X"]
    operators = [event for event in timed if event.get("cat") == "cpu_op"]
    named = [event for event in operators if NAMES.search(event["name"])]
    spans = named if compiled else _norm_spans(timed, operators)
    inside = running(spans)
    calls = calls_of(timed)
    are_norms = [
        (compiled and NAMES.search(call.name) is not None)
        or inside.at(call.thread, call.time) is not None
        for call in calls
    ]
    kernels = kernel_times(calls, are_norms, steps)
    lost = sum(call.seconds for call in calls if call.thread is None)
    if lost > MOST_WITHOUT_LAUNCH * sum(call.seconds for call in calls):
        return StepProfile(kernels, "unknown")
    names = {kernel.name for kernel in kernels} | {event["name"] for event in operators}
    return StepProfile(kernels, _attribution(kernels, names, n_norms, compiled))


def kernel_times(
    calls: Sequence[StartedCall], are_norms: Sequence[bool], steps: int
) -> list[KernelTime]:
    """The kernels of one of so many steps, largest first. are_norms: whether each call belongs to a norm."""
    totals: dict[tuple[str, bool], list[float]] = defaultdict(lambda: [0, 0.0])
    for call, is_norm in zip(calls, are_norms, strict=True):
        total = totals[call.name, is_norm]
        total[0] += 1
        total[1] += call.seconds
    kernels = [
        KernelTime(name, n_calls / steps, seconds / steps, is_norm)
        for (name, is_norm), (n_calls, seconds) in totals.items()
    ]
    return sorted(kernels, key=lambda kernel: -kernel.seconds)


def _attribution(
    kernels: Sequence[KernelTime], names: Iterable[str], n_norms: int, compiled: bool
) -> Attribution:
    """How norms were found. Every norm has at least one kernel in each pass; with fewer, some were not found."""
    if sum(kernel.calls for kernel in kernels if kernel.is_norm) < 2 * n_norms:
        return "unknown"
    if not compiled:
        return "ranges"
    passes = {"backward" in name for name in names if NAMES.search(name)}
    return "names" if len(passes) == 2 else "unknown"


def calls_of(timed: Sequence[Event]) -> list[StartedCall]:
    """Everything that ran on a GPU; without a GPU, every operator. timed: events with a duration."""
    operators = [event for event in timed if event.get("cat") == "cpu_op"]
    return _device_calls(timed, operators) or _operator_calls(operators)


def _device_calls(timed: Sequence[Event], operators: Sequence[Event]) -> list[StartedCall]:
    """Everything that ran on a GPU, with the place of its launch; empty without a GPU.

    The place is that of the call of the driver or the runtime; where the trace has none, that of the operator. The
    thread is None if there is neither.
    """
    launches = {_argument(event, "correlation"): event for event in timed if is_host_call(event)}
    by_operator = {_argument(event, "External id"): event for event in operators}
    calls = []
    for event in timed:
        if event.get("cat") in DEVICE:
            launch = launches.get(_argument(event, "correlation"))
            launch = launch or by_operator.get(_argument(event, "External id"))
            thread, time = (None, 0.0) if launch is None else (launch["tid"], launch["ts"])
            calls.append(StartedCall(event["name"], event["dur"] * MICROSECOND, thread, time))
    return calls


def _argument(event: Event, name: str) -> Any:
    """An argument of an event; the event's identity if it has none, which equals nothing else."""
    return event.get("args", {}).get(name, ("none", id(event)))


def _operator_calls(operators: Sequence[Event]) -> list[StartedCall]:
    """Every operator with its own time: without that of the operators that it called directly."""
    inner: dict[int, float] = defaultdict(float)  # by the identity of an operator
    open_ones: dict[Any, list[Event]] = defaultdict(list)
    for event in sorted(operators, key=lambda one: (one["ts"], -one["dur"])):
        stack = open_ones[event["tid"]]
        while stack and _end(stack[-1]) <= event["ts"]:
            stack.pop()
        if stack:
            inner[id(stack[-1])] += event["dur"]
        stack.append(event)
    return [
        StartedCall(
            one["name"], max(0.0, one["dur"] - inner[id(one)]) * MICROSECOND, one["tid"], one["ts"]
        )
        for one in operators
    ]


def _norm_spans(timed: Sequence[Event], operators: Sequence[Event]) -> list[Event]:
    """The ranges of norms; in backward the whole node, with the sums of its gradients."""
    spans = [e for e in timed if e.get("cat") == "user_annotation" and e["name"] == NORM]
    nodes = [event for event in operators if event["name"].startswith(EVALUATE)]
    at = running(nodes).at
    around = [node for span in spans if (node := at(span["tid"], span["ts"])) is not None]
    return spans + around


class Outermost(Generic[Value]):
    """Times in which something runs, by thread, each with a value. Of times inside each other, the outermost counts."""

    def __init__(self, times: Iterable[tuple[Any, float, float, Value]]) -> None:
        """times: (thread, start, end, value)."""
        self._starts: dict[Any, list[float]] = defaultdict(list)
        self._running: dict[Any, list[tuple[float, Value]]] = defaultdict(list)
        for thread, start, end, value in sorted(times, key=lambda one: (one[1], -one[2])):
            running = self._running[thread]
            if not running or start >= running[-1][0]:
                self._starts[thread].append(start)
                running.append((end, value))

    def at(self, thread: Any, time: float) -> Value | None:
        """What was running in this thread at this time."""
        before = bisect_right(self._starts.get(thread, []), time)
        end, value = self._running[thread][before - 1] if before else (-math.inf, None)
        return value if time <= end else None


def running(events: Iterable[Event]) -> Outermost[Event]:
    """The events as the times in which they run."""
    return Outermost((event["tid"], event["ts"], _end(event), event) for event in events)


def _end(event: Event) -> float:
    end: float = event["ts"] + event["dur"]
    return end
