"""What fusion saves: RMSNorm with ReLU in one kernel, against RMSNorm and then ReLU. Bytes and times.

Predicted bytes of the norm are those of ``rownorm analyze``; ReLU reads and writes every element once.
"""

from __future__ import annotations

from functools import partial

import msgspec

from rownorm.inside import Target

from ...compiled.analysis import analyze
from ...compiled.compile import compile_case
from ...compiled.measured import times_in_turns
from ...data.analyses import Analysis
from ...data.case import ITEMSIZE, Case
from ...data.tunings import Fusion, Way
from ...measure.accuracy import judge
from ...measure.machine import machine_of
from ...measure.timing import SHORTEST_CALL
from ...providers import data
from .counted import call_of, memory_bytes

NOTHING_MEASURED = "nothing was measured: there is no GPU here, or another one was named"


def fusion_of(case: Case, target: Target, measure: bool) -> Fusion:
    """Both ways of a case without an activation; measured on this machine's GPU, or predicted only."""
    fused_case = msgspec.structs.replace(case, activation="relu")
    fused, norm = (analyze(compile_case(one, target)) for one in (fused_case, case))
    found = Fusion(
        title=f"{case.operation} + relu, {case.dtype} {case.rows}x{case.cols}",
        device=fused.device,
        fused=_predicted("fused", fused, relu=0),
        two_steps=_predicted(
            "two steps", norm, relu=2 * case.rows * case.cols * ITEMSIZE[case.dtype]
        ),
        note=NOTHING_MEASURED,
    )
    return _measured(found, case, fused_case) if measure else found


def _predicted(name: str, norm: Analysis, relu: int) -> Way:
    seconds = norm.predicted_seconds
    seconds += max(SHORTEST_CALL, relu / norm.ceiling) if relu else 0.0
    return Way(
        name=name,
        kernels=len(norm.kernels) + bool(relu),
        predicted_bytes=norm.memory_bytes + relu,
        predicted_seconds=seconds,
    )


def _measured(found: Fusion, case: Case, fused_case: Case) -> Fusion:
    """With times and, where a profiler can count them, bytes. Results are checked first."""
    machine = machine_of(None, [])
    ways = (found.fused, found.two_steps)
    [tensors] = data.rotation(fused_case, 1, machine.device)
    for way in ways:
        y = call_of(way.name, fused_case, tensors)()
        # Two steps round the norm to its dtype before ReLU, as any peer may.
        judgement = judge(fused_case, tensors, (y,), strict=way is found.fused)
        if not judgement.ok:
            return msgspec.structs.replace(
                found, note=f"not measured: the results of {way.name} are wrong: {judgement.why}"
            )
    del tensors
    with machine.stream():
        seconds = times_in_turns(case, machine, [partial(call_of, way.name) for way in ways])
    machine.free()
    sizes, note = memory_bytes([way.name for way in ways], case)
    fused, two_steps = (
        msgspec.structs.replace(way, measured_seconds=time, measured_bytes=size)
        for way, time, size in zip(ways, seconds, sizes, strict=True)
    )
    return msgspec.structs.replace(found, fused=fused, two_steps=two_steps, note=note)
