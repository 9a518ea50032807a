"""The primary bottleneck, and what to try next: read from the figures of a profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...data import texts
from ...data.profile_tables import place_of
from ...data.profiles import NEAR_PEAK, Figure, ScriptNorm, SourceLine
from ...data.studies import KernelTime
from ...profilers.request import ProfileRequest
from .figures import IDLE, NORM_SHARE, OCCUPANCY, OVERHEAD, PEAK_SHARE, TIME, value_of

MOSTLY_IDLE = 0.3
FEW_WARPS = 0.25
# Of a line with accesses that are apart: sectors beside those that its bytes need, and its part of the kernel's.
APART = 1.25
LEAST_PART = 0.05
NO_NORM = (
    "No norm was found. Code that torch.compile has compiled hides norms on a CPU, and on a GPU if they are written "
    "op by op: profile the eager model."
)
NOTHING = "unknown: there is neither a trace nor a counter to read it from"


def bottleneck_of(
    request: ProfileRequest,
    figures: Sequence[Figure],
    kernels: dict[str, list[KernelTime]],
    norms: Sequence[ScriptNorm],
    on_gpu: bool,
) -> tuple[str, list[str]]:
    """(the bottleneck in a sentence, what to try)."""
    about_norms = _saving(norms) if norms or not request.script else [NO_NORM]
    if not on_gpu:
        return _on_cpu(request, figures, about_norms)
    if request.case is None:
        return _of_step(request, figures, kernels, about_norms)
    names = (TIME.format(request.unit), OVERHEAD.format(request.unit), PEAK_SHARE)
    time, host, share = (value_of(figures, name, "rownorm") for name in names)
    if time is None:
        return NOTHING, ["Read the reasons of the tools above."]
    if host is not None and host > time:
        return (
            f"launch overhead: the host needs {texts.duration(host)} for a call, its kernels {texts.duration(time)}",
            [
                "Capture the step in a CUDA graph, or compile the model: both take the host out of the way.",
                "Give each call more rows, and fuse the residual add or the activation into it (add_*, activation=).",
            ],
        )
    if share is None:
        return (
            f"unknown: the peak bandwidth of this device is not in the database; kernels take {texts.duration(time)}",
            ["Compare with the ceiling: rownorm bench --provider rownorm,ceiling."],
        )
    if share >= NEAR_PEAK:
        return (
            f"memory bandwidth: {texts.percent(share)} of the peak",
            [
                "Move fewer bytes: fuse the residual add or the activation (add_*, activation=), or use a 16-bit dtype."
            ],
        )
    warps = [
        one.value for one in figures if one.name == OCCUPANCY and one.subject.startswith("rownorm")
    ]
    few = f", with {texts.percent(min(warps))} of the warps active" if warps else ""
    advice = [
        f"rownorm analyze {_arguments(request)} --target this --measure shows what limits it."
    ]
    if warps and min(warps) < FEW_WARPS:
        advice.append(
            "Few warps are active: registers or shared memory limit them; rownorm tune tries others."
        )
    return (
        f"latency: {texts.percent(share)} of the peak{few}; too few bytes are in flight, or there is little work",
        advice,
    )


def of_lines(lines: Sequence[SourceLine]) -> list[str]:
    """Of the line that addresses the most sectors beyond need, if there is one."""
    of_kernel = Counter[str]()
    for one in lines:
        of_kernel[one.kernel] += one.sectors
    apart = [
        one
        for one in lines
        if one.times_needed > APART and one.sectors >= LEAST_PART * of_kernel[one.kernel]
    ]
    if not apart:
        return []
    worst = max(apart, key=lambda one: one.excess_sectors)
    return [
        f"{place_of(worst)} addresses {texts.times(worst.times_needed)} the sectors that its bytes need: the "
        "threads of a warp access memory with a stride, or misaligned; let neighbouring threads access neighbouring "
        "elements."
    ]


def _of_step(
    request: ProfileRequest,
    figures: Sequence[Figure],
    kernels: dict[str, list[KernelTime]],
    advice: list[str],
) -> tuple[str, list[str]]:
    """Of a training step: the host, norms, or other kernels. advice: what is known about norms; so below."""
    subject = request.subjects[0]
    if not kernels.get(subject):
        return NOTHING, ["Read the reasons of the tools above."]
    idle = value_of(figures, IDLE, subject)
    share = value_of(figures, NORM_SHARE, subject)
    if idle is not None and idle > MOSTLY_IDLE:
        advice += [
            "Launch fewer kernels: fused norms, a fused optimizer, torch.compile, CUDA graphs, larger batches."
        ]
        return f"the host: the GPU is idle for {texts.percent(idle)} of the time", advice
    largest = kernels[subject][0]
    total = sum(one.seconds for one in kernels[subject])
    of_all = texts.percent(largest.seconds / total)
    if share is not None:
        most = "no change to them can gain more than that"
        advice.append(f"Norms are {texts.percent(share)} of kernel time: {most}.")
    if largest.is_norm:
        return f"norms: {largest.name} alone takes {of_all} of kernel time", advice
    return f"other kernels than norms: {largest.name} takes {of_all} of kernel time", advice


def _on_cpu(
    request: ProfileRequest, figures: Sequence[Figure], advice: list[str]
) -> tuple[str, list[str]]:
    share = value_of(figures, NORM_SHARE, request.subjects[0])
    if request.case:
        advice.append(
            f"rownorm analyze {_arguments(request)} predicts the kernels of a GPU without one."
        )
    advice.append(
        "Run the same command on a machine with a GPU for launch overhead, bandwidth and occupancy."
    )
    if request.case or share is None:
        return "unknown: there is no GPU here, and the CPU path says nothing about kernels", advice
    return (
        f"of the CPU, not of a GPU: norms are {texts.percent(share)} of the time in operators",
        advice,
    )


def _saving(norms: Sequence[ScriptNorm]) -> list[str]:
    """What rownorm would save in a script, over the norms that were estimated."""
    known = [(one.seconds, one.rownorm_seconds) for one in norms if one.rownorm_seconds is not None]
    if not known:
        return []
    before, after = (sum(values) for values in zip(*known, strict=True))
    if after >= before:
        return [
            f"rownorm would save nothing: {texts.duration(before)} of norms in a step, {texts.duration(after)} with it."
        ]
    return [
        f"rownorm.patch(model) would save about {texts.duration(before - after)} of a step: "
        f"{texts.duration(before)} of norms would take {texts.duration(after)}."
    ]


def _arguments(request: ProfileRequest) -> str:
    case = request.case
    assert case is not None
    direction = "" if case.direction == "forward" else " --pass backward"
    return f"{case.operation} --cols {case.cols} --rows {case.rows} --dtype {case.dtype}{direction}"
