"""The tables of a profile, as headers and lines of text: for the terminal, for Markdown and for the page."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import texts
from .profiles import Figure, Profile, ScriptNorm, SourceLine, ToolResult
from .study_tables import kernel_table
from .tables import WIDTH, Table, shortened, terminal_width, wrapped

# Figures of kernels, as headers of columns.
SHORT = {
    "share of peak bandwidth": "of peak",
    "achieved occupancy": "occupancy",
    "theoretical occupancy": "at most",
    "sectors per load request": "sectors/load",
    "sectors per store request": "sectors/store",
    "registers of a thread": "registers",
}
# What a warp waits for, by ncu's name of the stall.
WAITS = {
    "barrier": "a barrier",
    "branch_resolving": "a branch",
    "dispatch": "the dispatcher",
    "drain": "its last stores",
    "gmma": "tensor cores",
    "imc": "a constant",
    "lg": "room in the queue of global memory",
    "long_sb": "global memory",
    "math": "a busy arithmetic unit",
    "membar": "a memory fence",
    "mio": "room in the queue of shared memory",
    "misc": "something else",
    "no_inst": "its next instruction",
    "not_selected": "its turn, other warps issue",
    "selected": "nothing, it issues",
    "short_sb": "shared memory or a shuffle",
    "sleep": "the end of a sleep",
    "tex": "room in the queue of textures",
    "wait": "the instruction before",
}
LINE_KERNELS, LINES = 5, 8  # of the tables of source lines
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
    found += [*line_tables(profile), norm_table(profile)]
    return [table for table in found if table.lines]


def more_tables(profile: Profile, most: int) -> list[Table]:
    """Proton's scopes, the kernels of each subject, and the sources of figures; those that have lines."""
    tables = (*scope_tables(profile), *kernel_tables(profile, most), source_table(profile))
    return [table for table in tables if table.lines]


def tool_table(profile: Profile) -> Table:
    """How each tool fared, and what to do."""
    lines = [[one.tool, one.status, said_of(one)] for one in profile.tools]
    return Table("Tools", ["tool", "status", "files, or what to do"], lines)


def said_of(tool: ToolResult) -> str:
    """Why a tool has nothing, or its files and what it could not do."""
    return "; ".join(filter(None, (", ".join(tool.files) if tool.status == "ok" else "", tool.why)))


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


def line_tables(profile: Profile) -> list[Table]:
    """The source lines of each kernel at which its warps were sampled most often."""
    header = [
        "line",
        "samples",
        "waits for",
        "instructions",
        "sectors",
        "of those needed",
        "source",
    ]
    return [
        Table(
            f"{short_name(kernel)}: source lines",
            header,
            [
                [
                    place_of(one),
                    _share(one.samples, sum(line.samples for line in lines)),
                    _waits(one),
                    _share(one.instructions, sum(line.instructions for line in lines)),
                    f"{one.sectors:,}" if one.sectors else "",
                    texts.times(one.times_needed) if one.sectors else "",
                    one.text,
                ]
                for one in lines[:LINES]
            ],
        )
        for kernel, lines in list(_by_kernel(profile).items())[:LINE_KERNELS]
    ]


def line_texts(profile: Profile, most: int) -> list[str]:
    """For the terminal: two lines of text for each of the first ``most`` source lines of each kernel."""
    room, found = terminal_width() or WIDTH, list[str]()
    for kernel, lines in list(_by_kernel(profile).items())[:LINE_KERNELS]:
        total = sum(one.samples for one in lines)
        title = (
            f"{short_name(kernel)}: source lines, by their share of {texts.count(total, 'sample')}"
        )
        found += ["", *wrapped(title)]
        for one in lines[:most]:
            said = [f"{_share(one.samples, total):>6}  {place_of(one)}"]
            said += [f"waits for {_waits(one)}"] if one.stall else []
            if one.excess_sectors:
                said.append(f"{texts.times(one.times_needed)} of the sectors needed")
            found += wrapped(", ".join(said), 8)
            found += [f"{'':8}{shortened(one.text, room - 8)}"] if one.text else []
    return found


def place_of(one: SourceLine) -> str:
    """A source line: the file and the number."""
    return f"{one.file}:{one.line}"


def _by_kernel(profile: Profile) -> dict[str, list[SourceLine]]:
    found: dict[str, list[SourceLine]] = {}
    for one in profile.lines:
        found.setdefault(one.kernel, []).append(one)
    return found


def _waits(one: SourceLine) -> str:
    """The most frequent stall, and its share of the samples of the line."""
    if not one.stall:
        return ""
    return f"{WAITS.get(one.stall, one.stall)} ({_share(one.stall_samples, one.samples)})"


def _share(part: int, whole: int) -> str:
    return texts.percent(part / whole) if whole else ""


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
