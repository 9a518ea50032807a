"""The figures of an analysis as a table: one line for each figure, with its source; one column for each kernel.

Sources: *compiler* is read from compiled code; *derived* follows from the code's traced addresses, from the limits of
the architecture and from the assumptions in ``roofline``; *measured* was timed on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import texts
from .analyses import Analysis, CompiledCode, KernelAnalysis
from .tables import fitted, wrapped

EQUAL = 1.005  # times that differ by less count as equal


class FigureLine(NamedTuple):
    """One line of the table. of_kernel, of_pass: the text of a kernel and of a whole pass; "" where it has none."""

    name: str
    of_kernel: Callable[[KernelAnalysis], str] = lambda _: ""
    of_pass: Callable[[Analysis], str] = lambda _: ""
    source: str = "derived"


def _widths(widths: dict[int, int]) -> str:
    return " ".join(f"{width}" for width in sorted(widths, reverse=True)) or "-"


def _predicted_rate(one: Analysis) -> float:
    return one.compulsory_bytes / one.predicted_seconds


def _per_row(name: str, field: str) -> FigureLine:
    """A number of each kernel, whose sum is that of the pass."""
    return FigureLine(
        name,
        lambda kernel: texts.number(getattr(kernel, field)),
        lambda one: texts.number(sum(getattr(kernel, field) for kernel in one.kernels)),
    )


# (name, source, text) of what is read from compiled code; a user's kernel has these, too.
CODE_FIGURES: tuple[tuple[str, str, Callable[[CompiledCode], str]], ...] = (
    ("warps per program", "compiler", lambda k: str(k.warps)),
    ("registers per thread", "compiler", lambda k: str(k.registers)),
    ("spills, B per thread", "compiler", lambda k: str(k.spilled_bytes)),
    ("shared memory, B", "compiler", lambda k: f"{k.shared_bytes:,}"),
    ("occupancy", "derived", lambda k: texts.percent(k.occupancy)),
    ("limited by", "derived", lambda k: k.limited_by),
    ("load width, B per thread", "compiler", lambda k: _widths(k.load_widths)),
    ("store width, B per thread", "compiler", lambda k: _widths(k.store_widths)),
)
FIGURES = (
    FigureLine("programs", lambda k: f"{k.programs:,}"),
    *(FigureLine(name, text, source=source) for name, source, text in CODE_FIGURES),
    _per_row("loads per row", "load_requests_per_row"),
    _per_row("stores per row", "store_requests_per_row"),
    _per_row("sectors loaded per row", "load_sectors_per_row"),
    _per_row("sectors stored per row", "store_sectors_per_row"),
    FigureLine("sectors per access", lambda k: texts.number(k.sectors_per_request)),
    FigureLine("use of sectors", lambda k: texts.percent(k.sector_use)),
    _per_row("passes over the row", "passes"),
    FigureLine("in flight per program, B", lambda k: f"{k.in_flight_bytes:,.0f}"),
    FigureLine(
        "memory bytes",
        lambda k: texts.memory(k.memory_read + k.memory_written),
        lambda a: texts.memory(a.memory_bytes),
    ),
    FigureLine(
        "over compulsory bytes",
        of_pass=lambda a: texts.times(a.memory_bytes / a.compulsory_bytes),
    ),
    FigureLine("FLOP per byte", of_pass=lambda a: f"{a.intensity:.2f}"),
    FigureLine(
        "predicted time",
        lambda k: texts.duration(k.predicted_seconds),
        lambda a: texts.duration(a.predicted_seconds),
    ),
    FigureLine("bound by", lambda k: k.bound),
    FigureLine("predicted GB/s", of_pass=lambda a: texts.number(_predicted_rate(a) / 1e9)),
    FigureLine(
        "predicted, of ceiling", of_pass=lambda a: texts.percent(_predicted_rate(a) / a.ceiling)
    ),
    FigureLine(
        "measured time",
        of_pass=lambda a: texts.duration(a.measured.seconds) if a.measured else "",
        source="measured",
    ),
    FigureLine(
        "measured GB/s",
        of_pass=lambda a: texts.number(a.measured.bytes_per_second / 1e9) if a.measured else "",
        source="measured",
    ),
)


class Column(NamedTuple):
    """A kernel, or a whole pass of several (kernel is None). A pass of one kernel is one column."""

    heading: str
    analysis: Analysis
    kernel: KernelAnalysis | None
    whole: bool  # whether the figures of the pass belong here


def columns_of(analyses: Sequence[Analysis]) -> list[Column]:
    """The columns of a table, in the order of the analyses."""
    found = []
    for one in analyses:
        single = len(one.kernels) == 1
        for kernel in one.kernels:
            heading = one.label if single and len(analyses) > 1 else kernel.kernel
            found.append(Column(heading, one, kernel, single))
        if not single:
            found.append(Column("whole pass", one, None, True))
    return found


def cells(figure: FigureLine, shown: Sequence[Column]) -> list[str]:
    """One line of the table, without its name and source."""
    line = []
    for one in shown:
        text = figure.of_kernel(one.kernel) if one.kernel else ""
        line.append(text or (figure.of_pass(one.analysis) if one.whole else ""))
    return line


def table(analyses: Sequence[Analysis]) -> tuple[list[str], list[list[str]]]:
    """(header, lines) of the figures that these analyses have; the last column is the source."""
    shown = columns_of(analyses)
    lines = [[figure.name, *cells(figure, shown), figure.source] for figure in FIGURES]
    header = ["", *(one.heading for one in shown), "source"]
    return header, [line for line in lines if any(line[1:-1])]


def text_of(analyses: Sequence[Analysis]) -> list[str]:
    """The analyses of one case on one target, for a terminal."""
    first = analyses[0]
    unit = f"{first.kernels[0].sector_bytes}-byte sectors"
    if first.target.startswith("gfx"):
        unit = f"sectors are {first.kernels[0].sector_bytes}-byte cache lines"
    lines = wrapped(
        f"{first.case.title} on {first.device} ({first.target}), Triton {first.triton}; {unit}"
    )
    for name, value in facts(analyses):
        lines += wrapped(f"  {name:7} {value}", indent=10)
    lines += fitted(*table(analyses))
    return lines + [part for line in findings(analyses) for part in wrapped(f"  {line}", indent=4)]


def facts(analyses: Sequence[Analysis]) -> list[tuple[str, str]]:
    """rownorm's plan, its reason, and the ceiling of the prediction."""
    # A tuned row has the ceiling of its own run, another than that of the prediction.
    beside = "of the ceiling measured beside it"
    first = analyses[0]
    return [
        *(("plan", one.plan) for one in analyses if not one.block),
        *(
            ("reason", one.reason.replace("of the ceiling", beside))
            for one in analyses
            if one.reason
        ),
        ("ceiling", f"{texts.number(first.ceiling / 1e9)} GB/s, {first.ceiling_source}"),
    ]


def findings(analyses: Sequence[Analysis]) -> list[str]:
    """What the figures say, in words."""
    found = block_findings(analyses)
    for one in analyses:
        spilled = [kernel.kernel for kernel in one.kernels if kernel.spilled_bytes]
        if spilled:
            found.append(f"{one.label}: {texts.listed(spilled)} spills registers to memory.")
    return found


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
