"""The table of runs whose figures have bars, as a header and lines of text: for the terminal, Markdown and the page."""

from __future__ import annotations

from collections.abc import Sequence

from . import texts
from .judged import JudgedFigure, JudgedStudy
from .study_tables import NOT_MEASURED, Table

RUNS = 2  # in which every bar must hold


def figure_table(runs: Sequence[JudgedStudy]) -> Table:
    """A line for each figure: times and ratio in every run, the bar, and whether it holds in all of them."""
    first = runs[0]
    columns = ("torch", "with rownorm", first.ratio_name)
    endings = [""] if len(runs) == 1 else [f", run {n}" for n in range(1, len(runs) + 1)]
    measured = [{one.labels: one for one in run.figures} for run in runs]
    header = [*first.labels, *(f"{name}{ending}" for ending in endings for name in columns)]
    lines = []
    for labels in dict.fromkeys(labels for figures in measured for labels in figures):
        found = [figures.get(labels) for figures in measured]
        cells = [cell for one in found for cell in _cells(one)]
        bar = next(one.bar for one in found if one is not None)
        verdict = "not judged" if first.trial else _verdict(found)
        lines.append([*labels, *cells, f"{bar:g}", verdict])
    return Table(first.title, [*header, "bar", "holds"], lines)


def _cells(figure: JudgedFigure | None) -> list[str]:
    if figure is None:
        return [NOT_MEASURED, "", ""]
    times = (texts.duration(figure.torch), texts.duration(figure.rownorm))
    return [*times, f"{figure.ratio:.3f}"]


def _verdict(found: Sequence[JudgedFigure | None]) -> str:
    holding = sum(one is not None and one.holds for one in found)
    if holding == len(found):
        return "yes"
    return "no" if holding == 0 else f"in {holding} of {len(found)} runs"


def run_lines(runs: Sequence[JudgedStudy]) -> list[str]:
    """A line for each run: device, versions and date; and what is missing."""
    lines = []
    for number, run in enumerate(runs, 1):
        which = f"Run {number}: " if len(runs) > 1 else ""
        missing = ""
        if not run.is_complete:
            missing = f" Incomplete: {len(run.records)} of {texts.count(run.planned, 'record')}."
        lines.append(f"{which}{run.environment.describe()}, {run.time[:10]}.{missing}")
    return lines


def summary(runs: Sequence[JudgedStudy]) -> str:
    """How many bars hold."""
    if runs[0].trial:
        return "A trial run: nothing is judged."
    lines = figure_table(runs).lines
    holding = sum(line[-1] == "yes" for line in lines)
    if len(runs) > 1:
        return f"{holding} of {texts.count(len(lines), 'bar')} hold in all of {len(runs)} runs."
    return (
        f"{holding} of {texts.count(len(lines), 'bar')} hold in this run; they must in {RUNS} runs."
    )
