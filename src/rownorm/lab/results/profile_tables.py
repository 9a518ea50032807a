"""The tables of a profile, as headers and lines of text: for the terminal, for Markdown and for the page."""

from __future__ import annotations

from collections.abc import Callable

from .. import texts
from .profiles import Figure, Profile, ScriptNorm
from .study_tables import Table

WRITERS: dict[str, Callable[[float], str]] = {
    "s": texts.duration,
    "B/s": texts.gigabytes_per_second,
    "share": texts.percent,
    "number": texts.significant,
}


def value_of(figure: Figure) -> str:
    """The number with its unit."""
    return WRITERS[figure.unit](figure.value)


def tool_table(profile: Profile) -> Table:
    """How each tool fared, and what to do."""
    lines = [[one.tool, one.status, one.why or ", ".join(one.files)] for one in profile.tools]
    return Table("Tools", ["tool", "status", "files, or what to do"], lines)


def figure_table(profile: Profile) -> Table:
    """Every figure with its source."""
    lines = [[one.name, one.subject, value_of(one), one.source] for one in profile.figures]
    return Table("Figures", ["figure", "of", "value", "source"], lines)


def kernel_tables(profile: Profile, most: int) -> list[Table]:
    """The kernels of each subject that take the most time, in one call or step."""
    what = "operator" if profile.environment.kind == "cpu" else "kernel"
    found = []
    for subject, kernels in profile.kernels.items():
        total = sum(one.seconds for one in kernels)
        lines = [
            [
                one.name,
                f"{one.calls:g}",
                texts.duration(one.seconds),
                texts.percent(one.seconds / total),
                "norm" if one.is_norm else "",
            ]
            for one in kernels[:most]
        ]
        title = f"{subject}: {texts.duration(total)} in {what}s"
        found.append(Table(title, [what, "calls", "time", "share", ""], lines))
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
        f"{one.calls:g}",
        texts.duration(one.seconds),
        texts.if_known(ours, texts.duration),
        "" if ours is None else _signed(one.seconds - ours),
        one.source,
    ]


def _signed(seconds: float) -> str:
    return texts.duration(seconds) if seconds >= 0 else f"-{texts.duration(-seconds)}"
