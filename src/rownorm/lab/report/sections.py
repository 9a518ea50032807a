"""The parts of the page that need no JavaScript: verdicts, results, failures, environment, method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

from .. import texts
from ..results.records import OURS, Environment, Method
from ..results.rows import Results, Row
from . import headline, points
from .failures import failures_section

NOTHING = (
    '<p class="verdict">There are no records, so there is nothing to show.</p>'
    "<p>Measure something first: <code>rownorm bench --quick --out results/first</code>, "
    "then <code>rownorm report results/first</code>.</p>"
)
COLUMNS = (  # (heading, whether its values are numbers)
    ("operation", False),
    ("pass", False),
    ("dtype", False),
    ("rows", True),
    ("cols", True),
    ("provider", False),
    ("time", True),
    ('<span id="over">speed-up</span>', True),
    ("GB/s", True),
    ("of ceiling", True),
    ("of peak", True),
    ("memory", True),
    ("host", True),
    ("error, ulp", True),
)
TIMERS = {
    "cuda_graph": "device time of a CUDA graph over rotated inputs",
    "device_events": "device events around each call",
    "cpu_clock": "the CPU's clock around each call",
}
CPU_BANNER = (
    "<p class=\"banner\"><strong>These are CPU timings.</strong> They show rownorm's CPU path, which is PyTorch's own "
    "arithmetic, on this machine's processor. They do not show the speed of the kernels on a GPU.</p>"
)


def title(results: Sequence[Results]) -> str:
    """The title of the page."""
    return f"rownorm report: {texts.listed([one.device for one in results]) or 'no records'}"


def subtitle(results: Sequence[Results]) -> str:
    """Devices, dates and the number of records."""
    if not results:
        return "no records"
    rows = [row for one in results for row in one.rows]
    dates = sorted({row.record.time[:10] for row in rows if row.record.time})
    names = escape(texts.listed([one.device for one in results]))
    parts = [names, " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""]
    parts.append(texts.count(len(rows), "record"))
    chooser = "".join(f"<option>{escape(one.device)}</option>" for one in results)
    several = (
        f'<label data-needs-script hidden>device <select id="device">{chooser}</select></label>'
    )
    return " &middot; ".join(filter(None, parts)) + (f" {several}" if len(results) > 1 else "")


def damaged(lines: Sequence[tuple[int, str]]) -> str:
    """Lines of the records file that could not be read."""
    if not lines:
        return ""
    items = "".join(f"<li>line {number}: {escape(reason)}</li>" for number, reason in lines)
    left_out = texts.count(len(lines), "damaged line")
    return f'<div class="banner"><strong>{left_out} left out of this report.</strong><ul>{items}</ul></div>'


def notes(sentences: Sequence[str]) -> str:
    """What a reader must know about the records of this page."""
    return "".join(f'<p class="banner">{escape(one)}</p>' for one in sentences)


def device(results: Results) -> str:
    """The verdict on one device and its figures."""
    boxes = "".join(
        f"<div><dt>{escape(figure.label)}</dt><dd>{escape(figure.value)}</dd>"
        f'<dd class="note">{escape(figure.note)}</dd></div>'
        for figure in headline.figures(results)
    )
    warning = escape(headline.suspect_warning(results))
    verdict = escape(headline.sentence(results))
    banner = f'<p class="banner">{warning}</p>' if warning else ""
    return (
        f'<div class="device" data-device="{escape(results.device)}">'
        f"{CPU_BANNER if results.kind == 'cpu' else ''}{banner}"
        f'<p class="verdict">{verdict}</p>'
        f'<dl class="figures">{boxes}</dl></div>'
    )


def filters(results: Sequence[Results]) -> str:
    """Empty fieldsets, which the page's script fills in."""
    sets = "".join(
        f'<fieldset id="filter-{name}" aria-label="{name}"></fieldset>'
        for name in ("operation", "pass", "dtype")
    )
    return (
        f'<form class="filters" data-needs-script hidden>{sets}'
        '<fieldset id="filter-provider" class="providers" aria-label="provider"></fieldset>'
        '<fieldset id="filter-speedup" aria-label="speed-up"><label>speed-up of <select id="subject"></select></label>'
        '<label>over <select id="baseline"></select></label></fieldset></form>'
    )


def tables(results: Sequence[Results], method: str) -> str:
    """The results, the failures, the environment and the method; ``method`` is the text of the last section."""
    return "\n".join(
        (
            _results_table(results),
            failures_section(results),
            *map(_environment, results),
            f'<section id="method"><h2>Method</h2>{method}{_methods(results)}</section>',
        )
    )


def _results_table(results: Sequence[Results]) -> str:
    heads = "".join(
        f'<th scope="col"{_class(number)}>{heading}</th>' for heading, number in COLUMNS
    )
    every = [(row, one) for one in results for row in one.rows]
    lines = "\n".join(_line(i, row, one) for i, (row, one) in enumerate(every) if row.time)
    if not lines:
        return '<section id="results"><h2>Results</h2><p class="empty">Nothing was timed.</p></section>'
    button = '<button id="csv" type="button" data-needs-script hidden>Download as CSV</button>'
    return (
        '<section id="results"><h2>Results</h2><div class="bar"><span id="count" class="note"></span>'
        f'{button}</div><div class="scroll" tabindex="0" role="region" aria-label="Results"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{lines}\n</tbody></table></div></section>"
    )


def _line(i: int, row: Row, results: Results) -> str:
    """One line of the table; ``i`` is the row's index in the page's data."""
    record, case = row.record, row.record.case
    reasons = escape("; ".join(record.suspect))
    badge = f'<span class="badge" title="{reasons}">suspect</span>' if reasons else ""
    named = f' title="{escape(case.name)}"' if case.name else ""
    speedup = row.speedups.get(results.baseline or "")
    accuracy = record.accuracy
    cells = (
        f"<td{named}>{escape(case.variant)}</td><td>{case.direction}</td><td>{case.dtype}</td>",
        _number(str(case.rows), case.rows),
        _number(str(case.cols), case.cols),
        f"<td>{escape(record.provider)}{badge}</td>",
        _number(points.time_text(row.time) if row.time else "", row.time and row.time.median),
        _number(
            points.speedup_text(speedup) if speedup else "", speedup and speedup.ratio, "speedup"
        ),
        _number(points.bandwidth_text(row).replace(" GB/s", ""), row.bandwidth),
        _number(texts.if_known(row.of_ceiling, texts.percent), row.of_ceiling),
        _number(texts.if_known(row.of_peak, texts.percent), row.of_peak),
        _number(texts.if_known(record.peak_bytes, texts.memory), record.peak_bytes),
        _number(
            texts.if_known(row.host and row.host.median, texts.duration),
            row.host and row.host.median,
        ),
        _number(
            texts.significant(accuracy.max_ulp, 2) if accuracy else "",
            accuracy.max_ulp if accuracy else None,
        ),
    )
    ours = ' class="ours"' if record.provider == OURS else ""
    return f'<tr data-i="{i}" data-device="{escape(results.device)}"{ours}>{"".join(cells)}</tr>'


def _number(text: str, value: float | None, name: str = "") -> str:
    """A cell with its value for sorting; text in brackets is written small."""
    main, bracket, rest = text.partition(" (")
    small = f" <small>{escape(bracket.strip() + rest)}</small>" if bracket else ""
    sort = "" if value is None else f"{value:.6g}"
    return (
        f'<td class="number{" " + name if name else ""}" data-v="{sort}">{escape(main)}{small}</td>'
    )


def _class(number: bool) -> str:
    return ' class="number"' if number else ""


def _environment(results: Results) -> str:
    blocks = "".join(_facts(environment) for environment in results.environments)
    return (
        f'<section class="environment" data-device="{escape(results.device)}">'
        f"<h2>Environment: {escape(results.device)}</h2>{blocks}</section>"
    )


def _facts(environment: Environment) -> str:
    peak = "unknown"
    if environment.peak_bytes_per_second:
        peak = texts.gigabytes_per_second(environment.peak_bytes_per_second)
        peak += f" ({environment.peak_source})" if environment.peak_source else ""
    facts = {
        "device": f"{environment.device} {environment.arch}".strip(),
        "peak bandwidth": peak,
        **{
            name: getattr(environment, name)
            for name in ("host", "platform", "driver", "python", "torch", "triton", "rownorm")
        },
        **environment.versions,
        **environment.settings,
    }
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value
    )
    return f'<dl class="facts">{lines}</dl>'


def _methods(results: Sequence[Results]) -> str:
    """Every method that occurs, with its number of measurements."""
    found: dict[tuple[str, Method], int] = defaultdict(int)
    for one in results:
        for row in one.measured:
            if row.record.method:
                found[one.device, row.record.method] += 1
    items = "".join(
        f'<li data-device="{escape(place)}">{texts.count(number, "measurement")}: {TIMERS[method.timer]}; '
        f"{texts.count(method.rounds, 'round')} of "
        f"{texts.count(method.calls, 'call')} over {texts.count(method.rotation, 'set')} of inputs, "
        f"{'cold' if method.cold else 'warm'} cache</li>"
        for (place, method), number in found.items()
    )
    return f"<ul>{items}</ul>" if items else ""
