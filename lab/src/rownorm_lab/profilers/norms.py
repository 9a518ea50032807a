"""The norms in the trace of a script: their kernels, shapes and times.

A kernel belongs to a norm if the host launched it inside a range of ``hooks``, or inside an operator that is named as
a norm, or if it is itself named as one: kernels of compiled code, which may do other work too. In backward the whole
node counts, with the sums of its gradients. On a CPU operators take the place of kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..data.case import DTYPES, Case
from ..data.profiles import ScriptNorm
from ..data.studies import KernelTime
from .trace import EVALUATE, NAMES, Event, Outermost, StartedCall, calls_of, running

OURS = "rownorm::"
PREFIX = "norm"  # of the names of the ranges that ``hooks.py`` records
SHORT_DTYPES = {"float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}


class Found(NamedTuple):
    """All kernels, and the norms among them: in one step, largest first."""

    kernels: list[KernelTime]
    norms: list[ScriptNorm]


class Kind(NamedTuple):
    """Norms that are counted together."""

    what: str
    direction: str
    case: Case | None


class NormSpan(NamedTuple):
    """A time in a thread in which a norm runs. number: of the call; several spans of backward may share it."""

    thread: Any
    start: float
    end: float
    kind: Kind
    number: Any


def found_norms(timed: Sequence[Event], steps: int) -> Found:
    """The kernels of a step and its norms. timed: events with a duration; steps: that were recorded, at least 1."""
    spans = Outermost((one.thread, one.start, one.end, one) for one in _spans(timed))
    kernels: dict[tuple[str, bool], list[float]] = defaultdict(lambda: [0, 0.0])
    seconds: dict[Kind, float] = defaultdict(float)
    numbers: dict[Kind, set[Any]] = defaultdict(set)
    for order, call in enumerate(calls_of(timed)):
        span = spans.at(call.thread, call.time) or _named_kernel(call, order)
        total = kernels[call.name, span is not None]
        total[0] += 1
        total[1] += call.seconds
        if span is not None:
            seconds[span.kind] += call.seconds
            numbers[span.kind].add(span.number)
    norms = [
        ScriptNorm(
            what=kind.what,
            direction=kind.direction,
            case=kind.case,
            calls=len(numbers[kind]) / steps,
            seconds=total / steps,
        )
        for kind, total in seconds.items()
    ]
    shown = [
        KernelTime(name, n / steps, s / steps, is_norm)
        for (name, is_norm), (n, s) in kernels.items()
    ]
    return Found(
        sorted(shown, key=lambda one: -one.seconds), sorted(norms, key=lambda one: -one.seconds)
    )


def _spans(timed: Sequence[Event]) -> list[NormSpan]:
    nodes = running(event for event in timed if str(event["name"]).startswith(EVALUATE))

    def place(event: Event) -> Event:
        """The node of backward that runs when ``event`` begins; the event itself if there is none."""
        return nodes.at(event["tid"], event["ts"]) or event

    spans = []
    for number, event in enumerate(timed):
        category, name = event.get("cat"), str(event["name"])
        if category == "user_annotation" and name.startswith(f"{PREFIX}|"):
            spans.append(_range(place(event), name))
        elif category == "cpu_op" and NAMES.search(name):
            spans.append(_operator(place(event), event, number))
    return spans


def _range(event: Event, name: str) -> NormSpan:
    """The span of a range of ``hooks``; event: the node of autograd around it, else the range."""
    _, what, operation, direction, shape, dtype, number = name.split("|")
    rows, cols = map(int, shape.split("x"))
    kind = Kind(what, direction, _case(operation, direction, rows, cols, dtype))
    return NormSpan(event["tid"], event["ts"], event["ts"] + event["dur"], kind, number)


def _operator(place: Event, event: Event, number: int) -> NormSpan:
    """The span of an operator that is named as a norm; its shape if the trace has it and it is not rownorm's own."""
    name, arguments = str(event["name"]), event.get("args", {})
    direction = "backward" if "backward" in name else "forward"
    dims, types = arguments.get("Input Dims") or [[]], arguments.get("Input type") or [""]
    case = None
    if dims[0] and not name.startswith(OURS):
        operation = "rms_norm" if "rms" in name else "layer_norm"
        rows, cols = 1, dims[0][-1]
        for size in dims[0][:-1]:
            rows *= size
        case = _case(operation, direction, rows, cols, SHORT_DTYPES.get(types[0], ""))
    kind = Kind(name, direction, case)
    return NormSpan(
        place["tid"], place["ts"], place["ts"] + place["dur"], kind, f"operator {number}"
    )


def _case(operation: str, direction: str, rows: int, cols: int, dtype: str) -> Case | None:
    """The case of a norm; None for dtypes that the lab does not measure, and for no rows."""
    if dtype not in DTYPES or rows < 1 or cols < 1:
        return None
    fields: dict[str, Any] = {"operation": operation, "direction": direction, "dtype": dtype}
    return Case(rows=rows, cols=cols, **fields)


def _named_kernel(call: StartedCall, order: int) -> NormSpan | None:
    """A kernel that is itself named as a norm."""
    if NAMES.search(call.name) is None:
        return None
    kind = Kind(call.name, "", None)
    return NormSpan(None, 0.0, 0.0, kind, f"kernel {order}")
