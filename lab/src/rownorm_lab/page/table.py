"""The table of results: one line for each measurement, with the figures that matter first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from ..data import texts
from ..data.measurements import Measurement, Results
from ..data.records import OURS
from ..data.statistics import Ratio
from . import points
from .fastest import with_baselines


class Line(NamedTuple):
    """A measured row, and the provider that its speed-up is over."""

    row: Measurement
    device: str
    baseline: str | None

    @property
    def speedup(self) -> Ratio | None:
        return self.row.speedups.get(self.baseline or "")


class Column(NamedTuple):
    """A column of numbers: its text, and the value that it is sorted by."""

    heading: str
    text: Callable[[Line], str]
    value: Callable[[Line], float | None]
    name: str = ""  # its CSS class


def _ulp(line: Line) -> float | None:
    accuracy = line.row.record.accuracy
    return accuracy.max_ulp if accuracy else None


def _speedup_text(line: Line) -> str:
    if line.row.provider == line.baseline:
        return "baseline"
    return points.speedup_text(line.speedup) if line.speedup else ""


def _host(line: Line) -> float | None:
    return line.row.host.median if line.row.host else None


def _known(heading: str, value: Callable[[Line], float | None], written: texts.Writer) -> Column:
    """A column of numbers that are written as such; empty where there is none."""
    return Column(heading, lambda line: texts.if_known(value(line), written), value)


COLUMNS = (
    Column(
        "time",
        lambda line: points.time_text(line.row.time) if line.row.time else "",
        lambda line: line.row.time.median if line.row.time else None,
    ),
    Column(
        '<span id="over">speed-up</span>',
        _speedup_text,
        lambda line: line.speedup.ratio if line.speedup else None,
        "speedup",
    ),
    _known("error, ulp", _ulp, lambda value: texts.significant(value, 2)),
    _known("GB/s", lambda line: line.row.bandwidth, lambda value: texts.significant(value / 1e9)),
    _known("of ceiling", lambda line: line.row.of_ceiling, texts.percent),
    _known("of peak", lambda line: line.row.of_peak, texts.percent),
    _known("memory", lambda line: line.row.record.peak_bytes, texts.memory),
    _known("host", _host, texts.duration),
)
ALWAYS_SHOWN = 3  # of the columns, whether they have values or not: time, speed-up, error


def results_table(results: Sequence[Results]) -> str:
    """The section of the page."""
    lines = _lines(results)
    if not lines:
        return ""
    columns = [
        column
        for i, column in enumerate(COLUMNS)
        if i < ALWAYS_SHOWN or any(column.value(line) is not None for _, line in lines)
    ]
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("case", "rows x columns", "provider")
    )
    heads += "".join(f'<th scope="col" class="number">{one.heading}</th>' for one in columns)
    body = "\n".join(_html(i, line, columns) for i, line in lines)
    return (
        '<section id="results"><h2>Results</h2><div class="above"><span id="count" class="note"></span>'
        '<span class="note scroll-hint">Scroll sideways for more columns &rarr;</span>'
        '<button id="csv" type="button" data-needs-script hidden>Download as CSV</button></div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Results"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div></section>"
    )


def _lines(results: Sequence[Results]) -> list[tuple[int, Line]]:
    """The measured rows with their index in the page's data."""
    found, first = [], 0
    for one in results:
        baselines = {id(row): baseline for row, baseline in with_baselines(one)}
        found += [
            (first + i, Line(row, one.device, baselines[id(row)]))
            for i, row in enumerate(one.rows)
            if row.time
        ]
        first += len(one.rows)
    return found


def _html(i: int, line: Line, columns: Sequence[Column]) -> str:
    record, case = line.row.record, line.row.record.case
    reasons = escape("; ".join(record.suspect))
    badge = f'<span class="badge" title="{reasons}">suspect</span>' if reasons else ""
    named = f' title="{escape(case.name)}"' if case.name else ""
    ours = ' class="ours"' if record.provider == OURS else ""
    cells = (
        f'<td class="case"{named}>{escape(str(line.row.group))}</td>'
        f'<td class="case" data-v="{case.cols:09d} {case.rows:09d}"{named}>{case.rows} x {case.cols}</td>'
        f"<td>{escape(record.provider)}{badge}</td>"
    ) + "".join(_number(one.text(line), one.value(line), one.name) for one in columns)
    return f'<tr data-i="{i}" data-device="{escape(line.device)}"{ours}>{cells}</tr>'


def _number(text: str, value: float | None, name: str) -> str:
    """A cell with its value for sorting; text in brackets is written small."""
    main, bracket, rest = text.partition(" (")
    small = f" <small>{escape(bracket.strip() + rest)}</small>" if bracket else ""
    sort = "" if value is None else f"{value:.6g}"
    kind = f"number {name}".strip()
    return f'<td class="{kind}" data-v="{sort}">{escape(main)}{small}</td>'
