"""Failures and suspect measurements: what was not measured, or is suspect, and why."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ..data import texts
from ..data.measurements import Measurement, Results, provider_order
from . import points

KINDS = {
    "wrong": "the result failed the check against fp64",
    "failed": "the provider raised an error",
    "refused": "the provider does not support this case",
    "missing": "the provider is not installed, or does not support this device",
    "suspect": "timed, but there is a reason to distrust the time",
}
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


class Failure(NamedTuple):
    """One reason, and the rows that have it."""

    device: str
    provider: str
    kind: str  # a key of KINDS
    why: str
    rows: list[Measurement]


def failures_of(results: Results) -> list[Failure]:
    """One for each provider and reason. Reasons that differ only in numbers are merged."""
    found: dict[tuple[str, str, str], list[tuple[str, Measurement]]] = defaultdict(list)
    for row in results.rows:
        reasons = [("suspect", why) for why in row.record.suspect]
        if row.record.status != "ok":
            reasons.append((row.record.status, row.record.why))
        for kind, why in reasons:
            found[kind, row.provider, NUMBER.sub("0", why)].append((why, row))
    merged = [
        Failure(
            results.device,
            provider,
            kind,
            common([why for why, _ in pairs]),
            [row for _, row in pairs],
        )
        for (kind, provider, _), pairs in found.items()
    ]
    return sorted(
        merged, key=lambda one: (list(KINDS).index(one.kind), provider_order(one.provider))
    )


def common(reasons: Sequence[str]) -> str:
    """Reasons that differ only in numbers, as one: ``spread of 38 to 219% between ...``."""
    columns = zip(*map(NUMBER.split, reasons), strict=True)
    return "".join(
        parts[0]
        if len(set(parts)) == 1
        else " to ".join((min(parts, key=float), max(parts, key=float)))
        for parts in columns
    )


def causes(results: Results) -> str:
    """Why nothing was measured, for the top of the page; empty if something was. Equal reasons are merged."""
    if results.measured:
        return ""
    providers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in failures_of(results):
        cases = texts.count(len(one.rows), "case")
        providers[one.kind, one.why].append(f"{one.provider} ({cases})")
    items = "".join(
        f"<li><strong>{kind}</strong>: {escape(why) or 'no reason given'} "
        f'<span class="note">{escape(texts.listed(names))}</span></li>'
        for (kind, why), names in providers.items()
    )
    return f'<ul class="causes">{items}</ul>'


def problems(results: Results) -> str:
    """One sentence about errors and wrong results of any provider, if something was measured nevertheless."""
    found = [one for one in failures_of(results) if one.kind in ("wrong", "failed")]
    if not found or not results.measured:
        return ""
    counted: dict[tuple[str, str], int] = defaultdict(int)
    for one in found:
        counted[one.provider, one.kind] += len(one.rows)
    said = [
        f"{provider} {'was wrong' if kind == 'wrong' else 'failed'} in {texts.count(n, 'case')}"
        for (provider, kind), n in counted.items()
    ]
    return f'{escape(texts.listed(said))}: <a href="#failures">why</a>.'


def failures_section(results: Sequence[Results]) -> str:
    """The section of the page."""
    heading = '<section id="failures"><h2>Not measured or suspect, and why</h2>'
    found = [failure for one in results for failure in failures_of(one)]
    if not found:
        return f"{heading}<p>Every provider ran every case, and no measurement is suspect.</p></section>"
    meanings = " ".join(
        f"{kind.capitalize()}: {meaning}."
        for kind, meaning in KINDS.items()
        if any(failure.kind == kind for failure in found)
    )
    lines = "\n".join(
        f'<tr data-device="{escape(one.device)}"><td>{escape(one.provider)}</td><td>{one.kind}</td>'
        f'<td class="wrap">{escape(one.why) or "no reason given"}</td><td class="wrap">{_cases(one.rows)}</td></tr>'
        for one in found
    )
    heads = "".join(f"<th>{name}</th>" for name in ("provider", "what", "why", "cases"))
    return (
        f'{heading}<p class="how">{meanings}</p><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div></section>"
    )


def _cases(rows: Sequence[Measurement]) -> str:
    names = [escape(f"{row.group} {points.shape(row)}") for row in rows]
    if len(names) == 1:
        return names[0]
    listed = "<br>".join(names)
    return f"<details><summary>{texts.count(len(names), 'case')}</summary>{listed}</details>"
