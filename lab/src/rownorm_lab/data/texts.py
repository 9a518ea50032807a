"""Numbers as text: one format for each unit, for the terminal, the page, the plots and the analysis."""

from __future__ import annotations

import re
from collections.abc import Callable

Writer = Callable[[float], str]


def significant(value: float, digits: int = 3) -> str:
    """``value`` with that many significant digits and no exponent: 0.0123, 4.56, 1,230."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    places = digits - 1 - exponent
    return f"{round(value, places):,.{max(0, places)}f}"


def number(value: float) -> str:
    """A count or a rate: whole from 100 on, or if it is nearly whole; else with two decimals. 4,198; 8; 8.50."""
    whole = abs(value - round(value)) < 0.005
    return f"{value:,.0f}" if value >= 100 or whole else f"{value:.2f}"


def duration(seconds: float) -> str:
    """A time with a suitable unit: 850 ns, 12.3 µs, 4.56 ms, 1.20 s."""
    rounded = float(f"{seconds:.3g}")  # 999.9 ns is 1.00 µs
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if rounded < limit:
            return f"{significant(seconds * factor)} {unit}"
    return f"{significant(seconds)} s"


def gigabytes_per_second(bytes_per_second: float) -> str:
    """A bandwidth: 4,270 GB/s."""
    return f"{significant(bytes_per_second / 1e9)} GB/s"


def memory(size: float) -> str:
    """Bytes in decimal units: 0 B, 16.4 kB, 268 MB."""
    if size < 1e3:
        return f"{number(size)} B"
    for limit, factor, unit in ((1e6, 1e3, "kB"), (1e9, 1e6, "MB")):
        if size < limit:
            return f"{significant(size / factor)} {unit}"
    return f"{significant(size / 1e9)} GB"


def binary_size(size: int | None) -> str:
    """The size of a memory or a cache in binary units: 141 GiB, 50 MiB."""
    if size is None:
        return "unknown"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size / 1024:.4g} KiB"


def percent(fraction: float) -> str:
    """93%, 4.1%, 0.02%."""
    return f"{significant(100 * fraction, 2) if fraction < 0.1 else f'{100 * fraction:.0f}'}%"


def times(ratio: float) -> str:
    """A speed-up: 0.87x, 1.90x, 12.3x."""
    return f"{significant(ratio)}x"


def count(number: int, noun: str) -> str:
    """1 case, 3 cases."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: list[str]) -> str:
    """a; a and b; a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1] if names else "")))


def if_known(value: float | None, written: Writer) -> str:
    """The value formatted by ``written``; an empty string for None."""
    return "" if value is None else written(value)


def slug(text: str) -> str:
    """``text`` as part of a file name."""
    return re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-.") or "unnamed"
