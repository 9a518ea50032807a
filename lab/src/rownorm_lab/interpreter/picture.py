"""A launch as a picture of characters: lanes, masks and 32-byte sectors of its first accesses."""

from __future__ import annotations

import linecache

from .findings import Access, RecordedLaunch

WIDEST = 64  # characters of a bar
FEW = 16  # lanes that are drawn one by one


def picture(launch: RecordedLaunch) -> list[str]:
    """The first and the last program: active lanes, their elements, and the sectors that they touch."""
    lines = [
        f"{launch.kernel}, programs: {' x '.join(str(size) for size in launch.grid if size > 1) or 1}"
    ]
    for one in launch.shown:
        lines += _access(one)
    return lines


def _access(one: Access) -> list[str]:
    source = linecache.getline(one.site.file, one.site.line).strip()
    drawn = _few(one) if len(one.active) <= FEW else _bar(one)
    return [
        f"  program {one.program}, line {one.site.line}, {one.site.access}: {source}",
        *drawn,
        f"    {_sectors(one)}",
    ]


def _few(one: Access) -> list[str]:
    """Every lane with its element; a masked one is a dot, one outside of the tensor has an exclamation mark."""
    elements = [
        str(offset // one.width) + "!" * (lane in one.outside) if active else "."
        for lane, (offset, active) in enumerate(zip(one.offsets, one.active, strict=True))
    ]
    width = max(map(len, [*elements, str(len(elements))])) + 1
    lanes = "".join(f"{lane:>{width}}" for lane in range(len(elements)))
    return [
        f"    lane        {lanes}",
        f"    {one.tensor[:11]:11} " + "".join(f"{one:>{width}}" for one in elements),
    ]


def _bar(one: Access) -> list[str]:
    """# is active, . is masked, + is both, ! is outside of the tensor."""
    lanes = len(one.active)
    size = -(-lanes // WIDEST)
    marks, outside = "", {lane // size for lane in one.outside}
    for place, first in enumerate(range(0, lanes, size)):
        part = one.active[first : first + size]
        marks += "!" if place in outside else "#" if all(part) else "+" if any(part) else "."
    active = [offset // one.width for offset in one.touched]
    if not active:
        return [f"    [{marks}] all {lanes} lanes are masked"]
    masked = lanes - len(active)
    have = "lane has" if len(active) == 1 else "lanes have"
    left = f", {len(one.outside)} outside of it" if one.outside else ""
    return [
        f"    [{marks}]",
        f"    {len(active)} {have} {one.tensor}[{min(active)}] to [{max(active)}]{left}, {masked} are masked",
    ]


def _sectors(one: Access) -> str:
    least = one.least_sectors
    text = f"{one.sectors} sector{'s' if one.sectors != 1 else ''} of 32 bytes"
    return text if one.sectors <= least + 1 else f"{text}, where {least} would hold these elements"
