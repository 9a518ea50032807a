"""What ``rownorm tune --study`` found about fusion, as a table and sentences."""

from __future__ import annotations

from . import texts
from .tables import fitted, wrapped
from .tunings import Fusion

FUSION_HEADER = ("", "kernels", "bytes, predicted", "measured", "time, predicted", "measured")


def fusion_table(found: Fusion) -> list[list[str]]:
    """The lines of a table with FUSION_HEADER."""
    return [
        [
            way.name,
            str(way.kernels),
            texts.memory(way.predicted_bytes),
            texts.if_known(way.measured_bytes, texts.memory),
            texts.duration(way.predicted_seconds),
            texts.if_known(way.measured_seconds, texts.duration),
        ]
        for way in (found.fused, found.two_steps)
    ]


def fusion_findings(found: Fusion) -> list[str]:
    """What fusion saves, in words."""
    fused, two = found.fused, found.two_steps
    lines = [
        f"Predicted: the fused kernel moves {texts.percent(fused.predicted_bytes / two.predicted_bytes)} of the bytes "
        f"and is {texts.times(two.predicted_seconds / fused.predicted_seconds)} as fast."
    ]
    if fused.measured_seconds and two.measured_seconds:
        speed = texts.times(two.measured_seconds / fused.measured_seconds)
        moved = ""
        if fused.measured_bytes and two.measured_bytes:
            share = texts.percent(fused.measured_bytes / two.measured_bytes)
            moved = f"it moves {share} of the bytes and "
        lines.append(f"Measured: {moved}is {speed} as fast.".replace(": is", ": it is"))
    return [*lines, *([f"{found.note[0].upper()}{found.note[1:]}."] if found.note else [])]


def fusion_text(found: Fusion) -> list[str]:
    """The study for a terminal."""
    head = f"{found.title} on {found.device}"
    return [
        *wrapped(head),
        *fitted(FUSION_HEADER, fusion_table(found)),
        *(part for line in fusion_findings(found) for part in wrapped(f"  {line}", 4)),
    ]
