"""Records in; ``report.html``, ``plots/*.png`` and ``analysis.md`` out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..records import Record

__all__ = ["PAGE", "is_plot", "write_report"]

PAGE = "report.html"
_PLOT = re.compile(r"(.+-)?(bandwidth|latency|speedup|host-cost|accuracy|roofline)(-.+)?\.png")


def is_plot(file: Path) -> bool:
    """Whether a report writes files of that name into ``plots``."""
    return _PLOT.fullmatch(file.name) is not None


def write_report(
    records: Sequence[Record],
    folder: Path,
    *,
    damaged: Sequence[tuple[int, str]] = (),
    plots: bool = True,
    told: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write the report into ``folder``, return its files. ``damaged``: lines that could not be read, and why."""
    from ..files import write_whole
    from ..results import results_of
    from .analysis import analysis
    from .page import page
    from .plots import write_plots

    tell = told or (lambda _: None)
    tell("computing")
    results = results_of(records)
    written = [write_whole(folder / "analysis.md", analysis(results, damaged))]
    if plots:
        written += write_plots(results, folder / "plots", tell)
    tell("writing the page")
    return [write_whole(folder / PAGE, page(results, damaged)), *written]
