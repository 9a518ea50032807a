"""Published results: the headline figures of a benchmark run on one device, as one small JSON file.

``rownorm bars publish`` writes it. A reader needs this file alone, neither the records nor a GPU.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class PublishedCase(msgspec.Struct, frozen=True, array_like=True):
    """One case. In JSON it is a list in this order, which keeps the file small."""

    operation: str  # with its options: "rms_norm (silu)"
    direction: str
    dtype: str
    rows: int
    cols: int
    values: list[float | None]  # one for each provider of the part, in its unit; None: not measured
    of_ceiling: float | None  # rownorm's bandwidth over the ceiling's
    over_fastest_peer: float | None  # rownorm's speed over that of the fastest peer
    fastest_peer: str


class PublishedPart(msgspec.Struct, frozen=True):
    """Cases with the same providers and the same unit."""

    name: str
    title: str
    unit: str  # "GB/s", "µs" or "host µs"
    providers: list[str]
    cases: list[PublishedCase]


class PublishedBar(msgspec.Struct, frozen=True):
    """One bar over all runs."""

    part: str
    bar: str  # "at least 0.97 of the fastest peer, forward"
    cases: int
    worst: list[str]  # in each run
    holds: bool


class Published(msgspec.Struct, frozen=True):
    """The whole file. The figures are those of the first run; the bars are judged over all runs."""

    device: str
    arch: str
    peak_bytes_per_second: float | None
    date: str
    driver: str
    versions: dict[str, str]
    timers: list[str]  # of the records: "cuda_graph", ...
    cold: bool  # whether all inputs were out of the cache
    rounds: int
    runs: int
    parts: list[PublishedPart]
    bars: list[PublishedBar]


def read_published(file: Path) -> Published:
    """The published results of a file."""
    return msgspec.json.decode(file.read_bytes(), type=Published)
