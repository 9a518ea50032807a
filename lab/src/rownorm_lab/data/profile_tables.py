"""The tables of a profile, as headers and lines of text: for the terminal, for Markdown and for the page."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import texts
from .profiles import Figure, Profile, ScriptNorm
from .study_tables import kernel_table
from .tables import Table

# Figures of kernels, as headers of columns.
SHORT = {
    "share of peak bandwidth": "of peak",
    "achieved occupancy": "occupancy",
    "theoretical occupancy": "at most",
    "sectors per load request": "sectors/load",
    "sectors per store request": "sectors/store",
    "registers of a thread": "registers",
}
INDENT = "\N{NO-BREAK SPACE}" * 2  # which HTML and Markdown keep
WRITERS: dict[str, Callable[[float], str]] = {
    "s": texts.duration,
    "B/s": texts.gigabytes_per_second,
    "share": texts.percent,
    "number": lambda value: f"{value:,.0f}" if value == round(value) else texts.significant(value),
}


def value_of(figure: Figure) -> str:
    """The number with its unit."""
    return WRITERS[figure.unit](figure.value)


def main_tables(profile: Profile) -> list[Table]:
    """The tables that come first; those that have lines."""
    found = [tool_table(profile), figure_table(profile), counter_table(profile)]
    return [table for table in (*found, norm_table(profile)) if table.lines]


def more_tables(profile: Profile, most: int) -> list[Table]:
    """Proton's scopes, the kernels of each subject, and the sources of figures; those that have lines."""
    tables = (*scope_tables(profile), *kernel_tables(profile, most), source_table(profile))
    return [table for table in tables if table.lines]


def tool_table(profile: Profile) -> Table:
    """How each tool fared, and what to do."""
    lines = [[one.tool, one.status, one.why or ", ".join(one.files)] for one in profile.tools]
    return Table("Tools", ["tool", "status", "files, or what to do"], lines)


def figure_table(profile: Profile) -> Table:
    """The figures of whole calls or steps: one line each, one column for rownorm, for torch or for the script."""
    whole = [one for one in profile.figures if not _kernel_of(one)]
    subjects = list(dict.fromkeys(one.subject for one in whole))
    found: dict[tuple[str, str], dict[str, Figure]] = {}
    for one in whole:
        found.setdefault((one.name, _without_file(one.source)), {})[one.subject] = one
    lines = [
        [
            name,
            *(value_of(by[subject]) if subject in by else "" for subject in subjects),
            source if len(by) > 1 else next(iter(by.values())).source,
        ]
        for (name, source), by in found.items()
    ]
    return Table("Figures", ["figure", *subjects, "source"], lines)


def counter_table(profile: Profile) -> Table:
    """The figures of single kernels: one line for each kernel."""
    figures = [one for one in profile.figures if _kernel_of(one)]
    names = list(dict.fromkeys(one.name for one in figures))
    found: dict[str, dict[str, Figure]] = {}
    for one in figures:
        found.setdefault(one.subject, {})[one.name] = one
    lines = [
        [
            subject.split(": ")[0],
            short_name(subject.partition(": ")[2]),
            *(value_of(by[name]) if name in by else "" for name in names),
        ]
        for subject, by in found.items()
    ]
    return Table("Kernels", ["of", "kernel", *(SHORT.get(name, name) for name in names)], lines)


def source_table(profile: Profile) -> Table:
    """Where the figures of kernels come from."""
    sources = {one.name: one.source for one in profile.figures if _kernel_of(one)}
    lines = [[SHORT.get(name, name), name, source] for name, source in sources.items()]
    return Table("Sources of the figures of kernels", ["column", "figure", "source"], lines)


def short_name(kernel: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", kernel)
    return re.split(r"[<(]", name)[0].removeprefix("void ").rpartition("::")[2] or kernel


def _kernel_of(figure: Figure) -> str:
    """The kernel that a figure is about; "" if it is about all of them."""
    return figure.subject.partition(": ")[2]


def _without_file(source: str) -> str:
    """A source with the tool in place of its file: rownorm and torch have a file each."""
    file, _, rest = source.partition(": ")
    tools = {"json": "Chrome trace", "hatchet": "Proton"}
    tool = tools.get(file.rpartition(".")[2])
    return source if tool is None else f"{tool}: {rest}"


def kernel_tables(profile: Profile, most: int) -> list[Table]:
    """The kernels of each subject that take the most time, in one call or step."""
    on_cpu = profile.environment.kind == "cpu"
    return [kernel_table(name, found, most, on_cpu) for name, found in profile.kernels.items()]


def scope_tables(profile: Profile) -> list[Table]:
    """Proton's tree of scopes and kernels for each subject that has scopes."""
    found = []
    for subject, tree in profile.scopes.items():
        total = sum(one.seconds for one in tree if len(one.path) == 1)
        lines = [
            [
                INDENT * (len(one.path) - 1)
                + (short_name(one.path[-1]) if one.is_kernel else one.path[-1]),
                texts.number(one.calls),
                texts.duration(one.seconds),
                texts.percent(one.seconds / total) if total else "",
            ]
            for one in tree
        ]
        found.append(
            Table(f"{subject}: scopes", ["scope or kernel", "kernels", "time", "share"], lines)
        )
    return found


def norm_table(profile: Profile) -> Table:
    """The norms of a script, and what rownorm would make of them."""
    header = ["norm", "pass", "shape", "calls", "time", "with rownorm", "saves", "source"]
    return Table("Norms of the script, in one step", header, [_norm(one) for one in profile.norms])


def _norm(one: ScriptNorm) -> list[str]:
    ours, case = one.rownorm_seconds, one.case
    return [
        one.what,
        one.direction,
        "" if case is None else f"{case.rows}x{case.cols} {case.dtype}",
        texts.number(one.calls),
        texts.duration(one.seconds),
        texts.if_known(ours, texts.duration),
        "" if ours is None else _signed(one.seconds - ours),
        one.source,
    ]


def _signed(seconds: float) -> str:
    return texts.duration(seconds) if seconds >= 0 else f"-{texts.duration(-seconds)}"
