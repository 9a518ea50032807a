"""The figures of an analysis as a table: one line for each figure, with its source; one column for each kernel.

Sources: *compiler* is read from compiled code; *derived* follows from the code's traced addresses, from the limits of
the architecture and from the assumptions in ``roofline``; *measured* was timed on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import texts
from .analyses import Analysis, KernelAnalysis
from .tables import columns


class FigureLine(NamedTuple):
    """One line of the table. of_kernel, of_pass: the text of a kernel and of a whole pass; "" where it has none."""

    name: str
    source: str
    of_kernel: Callable[[KernelAnalysis], str]
    of_pass: Callable[[Analysis], str] = lambda _: ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.2f}"


def _widths(widths: dict[int, int]) -> str:
    return " ".join(f"{width}" for width in sorted(widths, reverse=True)) or "-"


def _total(field: str) -> Callable[[Analysis], str]:
    return lambda one: _number(sum(getattr(kernel, field) for kernel in one.kernels))


FIGURES = (
    FigureLine("programs", "derived", lambda k: f"{k.programs:,}"),
    FigureLine("warps per program", "compiler", lambda k: str(k.warps)),
    FigureLine("registers per thread", "compiler", lambda k: str(k.registers)),
    FigureLine("spills, B per thread", "compiler", lambda k: str(k.spilled_bytes)),
    FigureLine("shared memory, B", "compiler", lambda k: f"{k.shared_bytes:,}"),
    FigureLine("occupancy", "derived", lambda k: texts.percent(k.occupancy)),
    FigureLine("limited by", "derived", lambda k: k.limited_by.split(" and ")[0]),
    FigureLine("load width, B per thread", "compiler", lambda k: _widths(k.load_widths)),
    FigureLine("store width, B per thread", "compiler", lambda k: _widths(k.store_widths)),
    FigureLine(
        "loads per row",
        "derived",
        lambda k: _number(k.load_requests_per_row),
        _total("load_requests_per_row"),
    ),
    FigureLine(
        "stores per row",
        "derived",
        lambda k: _number(k.store_requests_per_row),
        _total("store_requests_per_row"),
    ),
    FigureLine(
        "sectors loaded per row",
        "derived",
        lambda k: _number(k.load_sectors_per_row),
        _total("load_sectors_per_row"),
    ),
    FigureLine(
        "sectors stored per row",
        "derived",
        lambda k: _number(k.store_sectors_per_row),
        _total("store_sectors_per_row"),
    ),
    FigureLine("sectors per access", "derived", lambda k: _number(k.sectors_per_request)),
    FigureLine("use of sectors", "derived", lambda k: texts.percent(k.sector_use)),
    FigureLine("passes over the row", "derived", lambda k: _number(k.passes), _total("passes")),
    FigureLine("in flight per program, B", "derived", lambda k: f"{k.in_flight_bytes:,.0f}"),
    FigureLine(
        "memory bytes",
        "derived",
        lambda k: texts.memory(k.memory_read + k.memory_written),
        lambda a: texts.memory(a.memory_bytes),
    ),
    FigureLine(
        "over compulsory bytes",
        "derived",
        lambda k: "",
        lambda a: texts.times(a.memory_bytes / a.compulsory_bytes),
    ),
    FigureLine("FLOP per byte", "derived", lambda k: "", lambda a: f"{a.intensity:.2f}"),
    FigureLine(
        "predicted time",
        "derived",
        lambda k: texts.duration(k.predicted_seconds),
        lambda a: texts.duration(a.predicted_seconds),
    ),
    FigureLine("bound by", "derived", lambda k: k.bound),
    FigureLine(
        "predicted GB/s",
        "derived",
        lambda k: "",
        lambda a: _number(a.compulsory_bytes / a.predicted_seconds / 1e9),
    ),
    FigureLine(
        "measured time",
        "measured",
        lambda k: "",
        lambda a: texts.duration(a.measured.seconds) if a.measured else "",
    ),
    FigureLine(
        "measured GB/s",
        "measured",
        lambda k: "",
        lambda a: _number(a.measured.bytes_per_second / 1e9) if a.measured else "",
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
    return ["", *(one.heading for one in shown), "source"], [
        line for line in lines if any(line[1:-1])
    ]


def text_of(analyses: Sequence[Analysis]) -> list[str]:
    """The analyses of one case on one target, for a terminal."""
    first = analyses[0]
    unit = f"{first.kernels[0].sector_bytes}-byte sectors"
    if first.target.startswith("gfx"):
        unit = f"sectors are {first.kernels[0].sector_bytes}-byte cache lines"
    lines = [
        f"{first.case.title} on {first.device} ({first.target}), Triton {first.triton}; {unit}"
    ]
    lines += [f"  plan    {one.plan}" for one in analyses if not one.block]
    # A tuned row has the ceiling of its own run, another than the one below.
    beside = "of the ceiling measured beside it"
    lines += [
        f"  reason  {one.reason.replace('of the ceiling', beside)}"
        for one in analyses
        if one.reason
    ]
    lines.append(f"  ceiling {texts.gigabytes_per_second(first.ceiling)}, {first.ceiling_source}")
    return [*lines, *columns(*table(analyses)), *(f"  {one}" for one in findings(analyses))]


def findings(analyses: Sequence[Analysis]) -> list[str]:
    """What the figures say, in words."""
    found = []
    loops = [one for one in analyses if one.block]
    if len(loops) > 1:
        first, last = loops[0], loops[-1]
        before, after = first.kernels[0], last.kernels[0]
        found.append(
            f"From block {first.block} to {last.block}: a thread loads {max(after.load_widths)} bytes at once, not "
            f"{max(before.load_widths)}; a row takes {_number(after.load_requests_per_row)} load instructions, not "
            f"{_number(before.load_requests_per_row)}."
        )
        best = min(loops, key=lambda one: (one.predicted_seconds, one.block or 0))
        found.append(
            f"Smallest predicted time: {texts.duration(best.predicted_seconds)} with block {best.block}, "
            f"bound by {best.kernels[0].bound}."
        )
    for one in analyses:
        spilled = [kernel.kernel for kernel in one.kernels if kernel.spilled_bytes]
        if spilled:
            found.append(f"{one.label}: {texts.listed(spilled)} spills registers to memory.")
    return found
