"""The norms in the trace of a script: their kernels, shapes and times.

A kernel belongs to a norm if the host launched it inside a range of ``hooks``, or inside an operator that is named as
a norm, or if it is itself named as one: kernels of compiled code, which may do other work too. In backward the whole
node counts, with the sums of its gradients. On a CPU operators take the place of kernels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..data.case import DTYPES, Case
from ..data.profiles import ScriptNorm
from ..data.studies import KernelTime
from .chrome import Event
from .trace import EVALUATE, NAMES, Outermost, StartedCall, calls_of, kernel_times, running

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


class Owner(NamedTuple):
    """What a kernel belongs to. number: of the call; several times in backward may share it."""

    kind: Kind
    number: Any


Span = tuple[
    Any, float, float, Owner
]  # a time in which a norm runs: thread, start, end, what it is


def found_norms(timed: Sequence[Event], steps: int) -> Found:
    """The kernels of a step and its norms. timed: events with a duration; steps: that were recorded, at least 1."""
    spans, calls = Outermost(_spans(timed)), calls_of(timed)
    owners = [
        spans.at(call.thread, call.time) or _named_kernel(call, order)
        for order, call in enumerate(calls)
    ]
    seconds: dict[Kind, float] = defaultdict(float)
    numbers: dict[Kind, set[Any]] = defaultdict(set)
    for call, owner in zip(calls, owners, strict=True):
        if owner is not None:
            seconds[owner.kind] += call.seconds
            numbers[owner.kind].add(owner.number)
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
    kernels = kernel_times(calls, [owner is not None for owner in owners], steps)
    return Found(kernels, sorted(norms, key=lambda one: -one.seconds))


def _spans(timed: Sequence[Event]) -> Iterator[Span]:
    """In backward, a norm runs as long as the node of autograd around it."""
    nodes = running(event for event in timed if str(event["name"]).startswith(EVALUATE))
    for number, event in enumerate(timed):
        category, name = event.get("cat"), str(event["name"])
        if category == "user_annotation" and name.startswith(f"{PREFIX}|"):
            owner = _of_range(name)
        elif category == "cpu_op" and NAMES.search(name):
            owner = _of_operator(event, number)
        else:
            continue
        around = nodes.at(event["tid"], event["ts"]) or event
        yield around["tid"], around["ts"], around["ts"] + around["dur"], owner


def _of_range(name: str) -> Owner:
    """The norm of a range of ``hooks``."""
    _, what, operation, direction, shape, dtype, number = name.split("|")
    rows, cols = map(int, shape.split("x"))
    return Owner(Kind(what, direction, _case(operation, direction, rows, cols, dtype)), number)


def _of_operator(event: Event, number: int) -> Owner:
    """An operator that is named as a norm; its shape if the trace has it and it is not rownorm's own."""
    name, arguments = str(event["name"]), event.get("args", {})
    direction = "backward" if "backward" in name else "forward"
    dims, types = arguments.get("Input Dims") or [[]], arguments.get("Input type") or [""]
    case = None
    if dims[0] and not name.startswith(OURS):
        operation = "rms_norm" if "rms" in name else "layer_norm"
        *outer, cols = dims[0]
        dtype = SHORT_DTYPES.get(types[0], "")
        case = _case(operation, direction, math.prod(outer), cols, dtype)
    return Owner(Kind(name, direction, case), f"operator {number}")


def _case(operation: str, direction: str, rows: int, cols: int, dtype: str) -> Case | None:
    """The case of a norm; None for dtypes that the lab does not measure, and for no rows."""
    if dtype not in DTYPES or rows < 1 or cols < 1:
        return None
    fields: dict[str, Any] = {"operation": operation, "direction": direction, "dtype": dtype}
    return Case(rows=rows, cols=cols, **fields)


def _named_kernel(call: StartedCall, order: int) -> Owner | None:
    """A kernel that is itself named as a norm."""
    if NAMES.search(call.name) is None:
        return None
    return Owner(Kind(call.name, "", None), f"kernel {order}")
