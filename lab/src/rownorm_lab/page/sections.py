"""The parts of the page that need no JavaScript: verdicts, contents, failures, environment, method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

from ..data import texts
from ..data.measurements import Results
from ..data.records import Environment, Method
from . import headline
from .chapter import Chapter
from .failures import causes, failures_section, problems
from .fastest import LEVEL_TEXT
from .table import results_table

NOTHING = (
    '<p class="verdict">There are no records, so there is nothing to show.</p>'
    "<p>Measure something first: <code>rownorm bench --quick --out results/first</code>, "
    "then <code>rownorm report results/first</code>.</p>"
)
TIMERS = {
    "cuda_graph": "device time of a CUDA graph over rotated inputs",
    "device_events": "device events around each call",
    "cpu_clock": "the CPU's clock around each call",
}
CLOCKS = {  # what a time of each kind of device includes
    "gpu": "Times are device times; host times are measured separately.",
    "cpu": "Times are those of whole calls on the CPU, from Python to the result.",
}
CPU_BANNER = (
    '<p class="banner"><strong>These are CPU timings.</strong> They show rownorm\'s CPU path on this '
    "machine's processor. They do not show the speed of the kernels on a GPU.</p>"
)
CHARTS = (  # (id of the section, its name)
    ("bandwidth", "Bandwidth"),
    ("speedup", "Speed-up"),
    ("latency", "Latency"),
    ("host", "Host cost"),
    ("accuracy", "Accuracy"),
    ("roofline", "Roofline"),
)
# Fields of an environment.
FACTS = ("host", "platform", "driver", "python", "torch", "triton", "rownorm", "node", "gpu")
TABLES = (
    ("results", "Results"),
    ("failures", "Not measured"),
    ("environment", "Environment"),
    ("method", "Method"),
)


def title(results: Sequence[Results], chapters: Sequence[Chapter] = ()) -> str:
    """The title of the page."""
    devices = [one.device for one in results] or _devices_of(chapters)
    return f"rownorm report: {texts.listed(devices) or 'no records'}"


def _devices_of(chapters: Sequence[Chapter]) -> list[str]:
    return list(dict.fromkeys(device for one in chapters for device in one.devices))


def subtitle(results: Sequence[Results], chapters: Sequence[Chapter] = ()) -> str:
    """Devices, dates and the number of records."""
    if not results:
        return escape(texts.listed(_devices_of(chapters))) or "no records"
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
    return "".join(f'<p class="how remark">{escape(one)}</p>' for one in sentences)


def device(results: Results) -> str:
    """The verdict on one device, or why nothing was measured. The script adds figures, which follow the filters."""
    parts = [f'<p class="verdict">{escape(headline.sentence(results))}</p>', causes(results)]
    if warning := headline.suspect_warning(results):
        parts.insert(0, f'<p class="banner">{escape(warning)}</p>')
    if results.measured:
        if results.kind == "cpu":
            parts.insert(0, CPU_BANNER)
        parts.append(f'<p class="scope how"><span class="filtered"></span> {LEVEL_TEXT}</p>')
        parts.append('<dl class="figures"></dl>')
    if found := problems(results):
        parts.append(f'<p class="how problems">{found}</p>')
    name = escape(results.device)
    return f'<div class="device" data-device="{name}">{"".join(parts)}</div>'


def contents(chapters: Sequence[Chapter] = ()) -> str:
    """Links to the sections; the script hides those of sections without data."""
    listed = (*CHARTS, *((one.place, one.name) for one in chapters), *TABLES)
    links = "".join(f'<a href="#{place}">{name}</a>' for place, name in listed)
    return f'<nav class="contents" aria-label="Contents">{links}</nav>'


def filters() -> str:
    """Empty choices, which the page's script fills in."""
    chosen = "".join(
        f'<label>{name} <select id="{name}"></select></label>'
        for name in ("operation", "pass", "dtype")
    )
    return (
        f'<form class="filters" data-needs-script hidden>{chosen}'
        '<details class="menu"><summary><span id="shown-providers">providers</span></summary>'
        '<fieldset id="providers" aria-label="providers"></fieldset></details>'
        '<fieldset id="compared" aria-label="speed-up"><label>speed-up of <select id="subject"></select></label> '
        '<label>over <select id="baseline"></select></label></fieldset>'
        '<button id="reset" type="button" hidden>Show all</button></form>'
    )


def tables(results: Sequence[Results], method: str) -> str:
    """The results, the failures, the environment and the method; ``method`` is the text of the last section."""
    return "\n".join(
        (
            results_table(results),
            failures_section(results),
            f'<div id="environment">{"".join(map(_environment, results))}</div>',
            f'<section id="method"><h2>Method</h2>{method}{_methods(results)}</section>',
        )
    )


def _environment(results: Results) -> str:
    return (
        f'<section class="environment" data-device="{escape(results.device)}">'
        f"<h2>Environment: {escape(results.device)}</h2>{_facts(results.environments)}</section>"
    )


def _facts(environments: Sequence[Environment]) -> str:
    """The facts of all environments; where they differ, every value that occurs."""
    found: dict[str, list[str]] = defaultdict(list)
    for environment in environments:
        for name, value in _facts_of(environment).items():
            if value:
                found[name].append(value)
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(' or '.join(dict.fromkeys(values)))}"
        f"{'' if len(values) == len(environments) else ' (not in all records)'}</dd>"
        for name, values in found.items()
    )
    return f'<dl class="facts">{lines}</dl>'


def _facts_of(environment: Environment) -> dict[str, str]:
    peak = "unknown"
    if environment.peak_bytes_per_second:
        peak = texts.gigabytes_per_second(environment.peak_bytes_per_second)
        peak += f" ({environment.peak_source})" if environment.peak_source else ""
    return {
        "device": " ".join(dict.fromkeys(filter(None, (environment.device, environment.arch)))),
        "peak bandwidth": peak,
        **{name: getattr(environment, name) for name in FACTS},
        **environment.versions,
        **environment.settings,
    }


def _methods(results: Sequence[Results]) -> str:
    """How the times of each device were measured: one item for each timer, with its ranges."""
    items = []
    for one in results:
        found: dict[tuple[str, bool], list[Method]] = defaultdict(list)
        for row in one.measured:
            if method := row.record.method:
                found[method.timer, method.cold].append(method)
        clock = CLOCKS["cpu" if one.kind == "cpu" else "gpu"]
        items += [
            f'<li data-device="{escape(one.device)}">{texts.count(len(methods), "measurement")}: {TIMERS[timer]}; '
            f"{_range([m.rounds for m in methods], 'round')} of {_range([m.calls for m in methods], 'call')} over "
            f"{_range([m.rotation for m in methods], 'set')} of inputs, {'cold' if cold else 'warm'} cache. "
            f"{clock}</li>"
            for (timer, cold), methods in found.items()
        ]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _range(values: Sequence[int], noun: str) -> str:
    """``10 rounds``, ``2 to 720 calls``."""
    low, high = min(values), max(values)
    return texts.count(low, noun) if low == high else f"{low:,} to {texts.count(high, noun)}"
