"""The GPU results that the package ships, for a page without a GPU of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from ..data import texts
from ..data.measurements import typical
from ..data.published import Published, PublishedCase, PublishedPart, read_published
from ..data.records import CEILING, EAGER, OURS
from .fastest import LEVEL
from .points import Point
from .sections import TIMERS

FILE = Path(__file__).parent / "data" / "h200.json"
DRAWN = (("rms_norm", "forward", "bf16"), ("rms_norm", "backward", "bf16"))
HEADS = (
    "cases",
    "fastest or level",
    "over the fastest other",
    "lowest",
    "over eager PyTorch",
    "of ceiling",
)


class Kind(NamedTuple):
    """The cases of a part with one pass."""

    part: PublishedPart
    direction: str
    cases: list[PublishedCase]


def shipped() -> Published:
    """The results in the package."""
    return read_published(FILE)


def folded(published: Published) -> str:
    """The section for the end of a page without results of a GPU; closed, so that nobody takes it for the sender's."""
    device = escape(published.device)
    return (
        f'<details class="shipped"><summary>Not from this machine: results of an {device} that are part of rownorm'
        f"</summary>{section(published)}</details>"
    )


def section(published: Published) -> str:
    """What was measured on that GPU, under which conditions; the charts are drawn by the page's script."""
    kinds = _kinds(published)
    device = escape(published.device)
    return (
        f'<section id="shipped"><p class="eyebrow">{device}: results that are part of rownorm '
        f"{escape(published.versions.get('rownorm', ''))}, not measured on this machine</p>"
        f'<p class="verdict">{escape(_sentence(published, kinds))}</p>'
        f'<p class="how">{escape(_conditions(published))}</p>'
        '<div class="panels two" data-needs-script hidden></div>'
        f"{_table(kinds)}</section>"
    )


def chart_points(published: Published) -> list[Point]:
    """The bandwidths of the cases that are drawn, in the form of ``points.point``."""
    return [
        {
            "operation": case.operation,
            "pass": case.direction,
            "dtype": case.dtype,
            "rows": case.rows,
            "cols": case.cols,
            "shape": f"{case.rows} x {case.cols}",
            "provider": provider,
            **dict.fromkeys(("gbps", "gbps_low", "gbps_high"), value),  # one run, so no interval
            "bandwidth": texts.gigabytes_per_second(value * 1e9),
        }
        for part in published.parts
        if part.unit == "GB/s"
        for case in part.cases
        if (case.operation, case.direction, case.dtype) in DRAWN
        for provider, value in zip(part.providers, case.values, strict=True)
        if value
    ]


def _kinds(published: Published) -> list[Kind]:
    """The cases with device times, by part and pass."""
    return [
        Kind(part, direction, cases)
        for part in published.parts
        if part.unit != "host µs"
        for direction in ("forward", "backward")
        if (cases := [case for case in part.cases if case.direction == direction])
    ]


def _sentence(published: Published, kinds: Sequence[Kind]) -> str:
    cases = [case for kind in kinds for case in kind.cases]
    over_eager = [ratio for kind in kinds for ratio in _over_eager(kind)]
    level = f"{_fastest_or_level(cases)} of {texts.count(len(cases), 'case')}"
    return (
        f"On an {published.device} {OURS} is fastest or level in {level}. Its median speed-up is "
        f"{_times(case.over_fastest_peer for case in cases)} over the fastest other provider of each case and "
        f"{_times(over_eager)} over eager PyTorch."
    )


def _conditions(published: Published) -> str:
    names = sorted({name for part in published.parts for name in part.providers} - {OURS, CEILING})
    timers = texts.listed([TIMERS[timer] for timer in published.timers])
    versions = ", ".join(f"{name} {version}" for name, version in published.versions.items())
    peak = published.peak_bytes_per_second
    facts = [
        f"Measured on {published.date}: {timers}, {'cold' if published.cold else 'warm'} cache, medians of "
        f"{texts.count(published.rounds, 'round')} in which all providers of a case take part",
        f"The other providers are {texts.listed(names)}; a case is compared with those that support it",
        f"Level: within {LEVEL:.0%} of the fastest other provider",
        f"Driver {published.driver}, {versions}",
        f"Peak bandwidth {texts.gigabytes_per_second(peak)}" if peak else "",
    ]
    return " ".join(f"{fact}." for fact in facts if fact)


def _table(kinds: Sequence[Kind]) -> str:
    heads = "".join(f'<th scope="col" class="number">{head}</th>' for head in HEADS)
    lines = "\n".join(_line(kind) for kind in kinds)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Shipped results"><table>'
        f'<thead><tr><th scope="col">kind</th>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
        '<p class="how">Speed-ups and shares of the ceiling are medians over cases; "lowest" is the smallest speed-up '
        "over the fastest other provider.</p>"
    )


def _line(kind: Kind) -> str:
    ratios = [case.over_fastest_peer for case in kind.cases if case.over_fastest_peer]
    share = typical(case.of_ceiling for case in kind.cases)
    cells = (
        str(len(kind.cases)),
        str(_fastest_or_level(kind.cases)),
        _times(ratios),
        texts.times(min(ratios)) if ratios else "",
        _times(_over_eager(kind)),
        texts.if_known(share, texts.percent),
    )
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f"<tr><td>{escape(kind.part.title)}, {kind.direction}</td>{numbers}</tr>"


def _fastest_or_level(cases: Iterable[PublishedCase]) -> int:
    return sum((case.over_fastest_peer or 0) > 1 / (1 + LEVEL) for case in cases)


def _over_eager(kind: Kind) -> list[float]:
    """rownorm's speed over eager PyTorch's in each case, from the medians."""
    found = []
    ours, eager = (kind.part.providers.index(name) for name in (OURS, EAGER))
    for case in kind.cases:
        mine, theirs = case.values[ours], case.values[eager]
        if mine and theirs:
            found.append(mine / theirs if kind.part.unit == "GB/s" else theirs / mine)
    return found


def _times(ratios: Iterable[float | None]) -> str:
    return texts.if_known(typical(ratios), texts.times)
