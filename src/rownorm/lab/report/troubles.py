"""What was not measured, or is doubtful, and why."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from .. import texts
from ..results import Results, Row, provider_order
from . import points

KINDS = {
    "wrong": "it failed the check against fp64",
    "failed": "it raised an error",
    "refused": "the provider does not do this case",
    "missing": "not installed, or not for this device",
    "suspect": "timed, but with a reason to doubt it",
}
NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


class Trouble(NamedTuple):
    """One reason, and the rows that have it."""

    device: str
    provider: str
    kind: str
    why: str
    rows: list[Row]


def troubles_of(results: Results) -> list[Trouble]:
    """One for each provider and reason; reasons that differ in their numbers only are one."""
    found: dict[tuple[str, str, str], list[tuple[str, Row]]] = defaultdict(list)
    for row in results.rows:
        given = [("suspect", mark) for mark in row.record.suspicions]
        if row.record.status != "ok":
            given.append((row.record.status, row.record.why))
        for kind, why in given:
            found[kind, row.provider, NUMBER.sub("0", why)].append((why, row))
    made = [
        Trouble(
            results.device,
            provider,
            kind,
            common([why for why, _ in pairs]),
            [row for _, row in pairs],
        )
        for (kind, provider, _), pairs in found.items()
    ]
    return sorted(made, key=lambda one: (list(KINDS).index(one.kind), provider_order(one.provider)))


def common(reasons: Sequence[str]) -> str:
    """Reasons that differ in their numbers only, as one: ``spread of 38 to 219% between ...``."""
    columns = zip(*map(NUMBER.split, reasons), strict=True)
    return "".join(
        parts[0]
        if len(set(parts)) == 1
        else " to ".join((min(parts, key=float), max(parts, key=float)))
        for parts in columns
    )


def troubles(results: Sequence[Results]) -> str:
    """The section of the page."""
    heading = '<section id="troubles"><h2>Not measured or doubtful, and why</h2>'
    found = [trouble for one in results for trouble in troubles_of(one)]
    if not found:
        return (
            f"{heading}<p>Every provider ran every case, and nothing looked doubtful.</p></section>"
        )
    meanings = " ".join(
        f"{kind.capitalize()}: {meaning}."
        for kind, meaning in KINDS.items()
        if any(trouble.kind == kind for trouble in found)
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


def _cases(rows: Sequence[Row]) -> str:
    names = [escape(f"{row.group} {points.shape(row)}") for row in rows]
    if len(names) == 1:
        return names[0]
    listed = "<br>".join(names)
    return f"<details><summary>{texts.count(len(names), 'case')}</summary>{listed}</details>"
