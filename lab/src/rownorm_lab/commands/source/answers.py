"""What people ask about a kernel, answered from its compiled code."""

from __future__ import annotations

from ...compiled.compile import ROWS
from ...data import texts
from ...data.analyses import Analysis, KernelAnalysis, TensorTraffic
from ...data.own_analyses import OwnAnalysis

Kernel = KernelAnalysis | OwnAnalysis


def answers(analysis: Analysis) -> list[tuple[str, str]]:
    """(question, answer) pairs for an analysis of one kernel."""
    kernel = analysis.kernels[0]
    rows = [one for one in kernel.tensors if one.tensor in ROWS]
    return [
        ("How many passes over the rows?", _passes(rows, "None: it reads no rows.")),
        ("Are accesses coalesced, and how wide?", _coalesced(kernel, kernel.sector_use)),
        *_of_code(kernel, analysis.target),
    ]


def own_answers(analysis: OwnAnalysis) -> list[tuple[str, str]]:
    """The same for a kernel of a user's file, with what could not be told."""
    found = [("Not known", line) for line in analysis.unknown]
    if analysis.traffic is None:
        return [*_of_code(analysis, analysis.target), *found]
    return [
        ("How many passes over the tensors?", _passes(analysis.tensors, "None.")),
        (
            "Are accesses coalesced, and how wide?",
            _coalesced(analysis, analysis.traffic.sector_use),
        ),
        *_of_code(analysis, analysis.target),
        *found,
    ]


def _of_code(kernel: Kernel, target: str) -> list[tuple[str, str]]:
    return [
        ("What is in registers and in shared memory?", _storage(target, kernel)),
        ("How do threads work together?", _cooperation(kernel)),
    ]


def _passes(rows: list[TensorTraffic], none: str) -> str:
    if not rows:
        return none
    return (
        "; ".join(
            f"{one.tensor} is {'loaded' if one.kind in ('load', 'copy') else 'stored'} "
            + ("once" if round(one.passes, 2) == 1 else f"{texts.number(one.passes)} times")
            for one in rows
        )
        + "."
    )


def _coalesced(kernel: Kernel, use: float) -> str:
    worst = min(kernel.tensors, key=lambda one: one.sector_use)
    widths = ", ".join(f"{one.tensor} {one.kind} {one.bytes_per_thread}" for one in kernel.tensors)
    verdict = f"{texts.percent(use)} of the bytes in the sectors are used"
    if worst.sector_use < 0.99:
        verdict += f"; least of {worst.tensor}: {texts.percent(worst.sector_use)}"
    return f"{verdict}. Bytes of one thread: {widths}."


def _storage(target: str, kernel: Kernel) -> str:
    lanes = 64 if target.startswith("gfx") else 32
    whole = kernel.registers * kernel.warps * lanes * 4
    spills = f"{kernel.spilled_bytes} bytes spilled" if kernel.spilled_bytes else "nothing spilled"
    return (
        f"{kernel.registers} registers of each of {kernel.warps * lanes} threads, {texts.memory(whole)} of a program; "
        f"{spills}; {texts.memory(kernel.shared_bytes)} of shared memory. Occupancy "
        f"{texts.percent(kernel.occupancy)}, limited by {kernel.limited_by}."
    )


def _cooperation(kernel: Kernel) -> str:
    count = kernel.instructions.get
    return (
        f"In the {kernel.isa.upper()} there are {count('reduction', 0)} shuffles or other exchanges between lanes, "
        f"{count('shared', 0)} accesses of shared memory and {count('barrier', 0)} barriers."
    )
