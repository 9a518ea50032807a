"""What ``rownorm tune --study`` found, as tables and sentences. Importing it needs neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Sequence

from . import texts
from .analyses import Analysis
from .tables import columns
from .tunings import Fusion

EQUAL = 1.005  # times that differ by less count as equal
BAR = 24  # characters of the longest bar
BLOCK_HEADER = ("block", "predicted", "GB/s", "bound by", "measured", "GB/s", "")
FUSION_HEADER = ("", "kernels", "bytes, predicted", "measured", "time, predicted", "measured")


def seconds_of(one: Analysis) -> float:
    """Measured, else predicted."""
    return one.measured.seconds if one.measured else one.predicted_seconds


def best_of(analyses: Sequence[Analysis]) -> Analysis | None:
    """The fastest block size; the smallest of those within 0.5%, because it takes the fewest registers."""
    loops = sorted((one for one in analyses if one.block), key=lambda one: one.block or 0)
    if not loops:
        return None
    fastest = min(loops, key=seconds_of)
    return next(one for one in loops if _is_equal(one, fastest))


def block_table(analyses: Sequence[Analysis]) -> list[list[str]]:
    """The lines of a table with BLOCK_HEADER; the last cell is a bar as long as the bandwidth."""
    speeds = [one.compulsory_bytes / seconds_of(one) for one in analyses]
    return [
        [
            str(one.block) if one.block else "rownorm",
            texts.duration(one.predicted_seconds),
            f"{one.compulsory_bytes / one.predicted_seconds / 1e9:,.0f}",
            max(one.kernels, key=lambda kernel: kernel.predicted_seconds).bound,
            texts.duration(one.measured.seconds) if one.measured else "",
            f"{one.measured.bytes_per_second / 1e9:,.0f}" if one.measured else "",
            "█" * max(1, round(BAR * speed / max(speeds))),
        ]
        for one, speed in zip(analyses, speeds, strict=True)
    ]


def block_findings(analyses: Sequence[Analysis]) -> list[str]:
    """The best block size and why, in words."""
    best = best_of(analyses)
    if best is None:
        return []
    how = "Measured" if best.measured else "Predicted, nothing was measured"
    kernel = best.kernels[0]
    lines = [
        f"{how}: block {best.block} is best, {texts.duration(seconds_of(best))}. A thread loads "
        f"{max(kernel.load_widths)} bytes at once, {texts.percent(kernel.occupancy)} of the warps fit on a "
        f"multiprocessor, and the time is bound by {kernel.bound}."
    ]
    loops = sorted((one for one in analyses if one.block), key=lambda one: one.block or 0)
    equals = [str(one.block) for one in loops if one is not best and _is_equal(one, best)]
    if equals:
        lines.append(
            f"{texts.listed(equals)} {'is' if len(equals) == 1 else 'are'} within 0.5% of it."
        )
    narrowest, widest = loops[0], loops[-1]
    return lines + [_why_other(one, best) for one in (narrowest, widest) if one is not best]


def _is_equal(one: Analysis, best: Analysis) -> bool:
    return seconds_of(one) <= EQUAL * seconds_of(best)


def _why_other(one: Analysis, best: Analysis) -> str:
    """How a block size differs from the best one."""
    a, b = one.kernels[0], best.kernels[0]
    ratio = seconds_of(one) / seconds_of(best)
    facts = [
        (max(a.load_widths), max(b.load_widths), "{} bytes per load of a thread"),
        (round(a.load_requests_per_row), round(b.load_requests_per_row), "{:,} loads per row"),
        (round(a.in_flight_bytes), round(b.in_flight_bytes), "{:,} bytes in flight per program"),
        (texts.percent(a.occupancy), texts.percent(b.occupancy), "{} of the warps"),
        (a.spilled_bytes, b.spilled_bytes, "{} bytes spilled per thread"),
    ]
    differing = [f"{text.format(x)} instead of {y}" for x, y, text in facts if x != y]
    return (
        f"Block {one.block} takes {texts.times(ratio)} the time, bound by {a.bound}: "
        f"{texts.listed(differing) or 'the same instructions'}."
    )


def blocks_text(analyses: Sequence[Analysis]) -> list[str]:
    """The block sizes of one case for a terminal."""
    first = analyses[0]
    return [
        f"{first.case.title} on {first.device} ({first.target}), against block size",
        *columns(BLOCK_HEADER, block_table(analyses)),
        *(f"  {line}" for line in block_findings(analyses)),
    ]


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
        head,
        *columns(FUSION_HEADER, fusion_table(found)),
        *(f"  {line}" for line in fusion_findings(found)),
    ]
